# Build Horovod from its source for Open MPI, gloo and the PyTorch that is installed. Its last release, 0.28.1 of 2023, asks
# for C++14, which the headers of PyTorch have not taken since 2.1: two lines are changed to what PyTorch says for its own
# extensions, C++17 or C++20. Some minutes on 8 cores.
set -e
has_mpi() { echo '#include <mpi.h>' | mpicxx -E -x c++ - >/dev/null 2>&1; } # Debian has mpicxx without its headers, too
if ! { command -v cmake g++ >/dev/null && has_mpi; }; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y openmpi-bin libopenmpi-dev cmake g++
fi
packages=${HOROVOD_SOURCE:-$(mktemp -d)}
python -m pip install "setuptools<81" wheel cloudpickle packaging psutil pyyaml
python -c 'import torch' || { echo "Horovod takes PyTorch: name torch in requirements.txt"; exit 1; }
if [ ! -e "$packages/CMakeLists.txt" ]; then
    python -m pip download --no-deps --no-binary :all: --no-build-isolation -d "$packages" horovod==0.28.1
    tar xzf "$packages"/horovod-0.28.1.tar.gz -C "$packages" --strip-components=1
fi
find_standard='import re; from torch.utils import cpp_extension as it; print(max(re.findall("-std=c[+][+]([0-9]+)", open(it.__file__).read())))'
standard=$(python -c "$find_standard" 2>/dev/null) || standard=17
sed -i "s/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD $standard)/" "$packages"/CMakeLists.txt "$packages"/horovod/torch/CMakeLists.txt
gpu=
has_cuda='import sys, torch; sys.exit(torch.version.cuda is None)'
builds_with_nccl() { # nvcc may be there without CUDA's libraries, and CUDA without NCCL
    echo '#include <nccl.h>
    int main() { int version; return ncclGetVersion(&version); }' >"$packages/nccl.cu"
    nvcc "$packages/nccl.cu" -lnccl -o "$packages/nccl"
}
if python -c "$has_cuda" && builds_with_nccl; then
    gpu=NCCL
else # pip's PyTorch is one for CUDA: its tensors on the CPU need no toolkit
    sed -i 's/string(TOUPPER .* Pytorch_CUDA)/set(Pytorch_CUDA FALSE)/' "$packages"/cmake/Modules/FindPytorch.cmake
fi
echo "Building Horovod for ${gpu:-the CPU alone}"
HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_GPU_OPERATIONS=$gpu python -m pip install --no-build-isolation --no-deps "$packages"
horovodrun --check-build
