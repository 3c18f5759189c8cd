from setuptools import setup

setup(
    name="digits",
    version="1.0",
    description="A small neural network that reads handwritten digits",
    python_requires=">=3.10",
    py_modules=["train"],
    install_requires=["matplotlib>=3.7", "numpy>=1.24", "scikit-learn>=1.3", "threadpoolctl>=3"],
)
