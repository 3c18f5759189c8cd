"""Clients of Cloud Storage with parts in Rust and C++: obstore, PyArrow, TensorStore.

Runs in an environment of its own. It prints a line for each step that went well.

Usage: python data_tour.py URL BUCKET TOKEN CLIENT
"""

import hashlib
import os
import sys
from datetime import datetime, timezone

URL, BUCKET, TOKEN, CLIENT = sys.argv[1:]
BIG = os.urandom(12 << 20)


def step(what: str) -> None:
    print(what, flush=True)


def obstore() -> None:
    """It speaks the XML API, of which the embedded cloud serves objects and lists."""
    import obstore.exceptions
    from obstore.store import GCSStore

    far = datetime(2099, 1, 1, tzinfo=timezone.utc)
    store = GCSStore(
        BUCKET,
        config={"base_url": URL},
        client_options={"allow_http": True},
        credential_provider=lambda: {"token": TOKEN, "expires_at": far},
        retry_config={"max_retries": 0},
    )
    found = obstore.get(store, "given/big")
    whole = bytes(found.bytes())
    assert (
        hashlib.sha256(whole).hexdigest()
        == bytes(obstore.get(store, "given/sha256").bytes()).decode()
    )
    step("get")
    assert bytes(obstore.get_range(store, "given/big", start=5, length=7)) == whole[5:12]
    parts = obstore.get_ranges(store, "given/big", starts=[0, 5 << 20], lengths=[3, 4])
    assert [bytes(each) for each in parts] == [whole[:3], whole[5 << 20 : (5 << 20) + 4]]
    step("ranges")
    about = obstore.head(store, "given/big")
    assert about["size"] == len(whole) and about["last_modified"].year >= 2020 and about["e_tag"]
    assert found.meta["last_modified"] == about["last_modified"]
    step("head")
    try:
        obstore.get(store, "none")
    except FileNotFoundError:
        step("missing")
    obstore.put(store, "new/é", b"text", use_multipart=False)
    assert bytes(obstore.get(store, "new/é").bytes()) == b"text"
    try:
        obstore.put(store, "new/é", b"late", mode="create", use_multipart=False)
    except obstore.exceptions.AlreadyExistsError:
        step("written")
    obstore.copy(store, "new/é", "new/b")
    there = [each["path"] for page in obstore.list(store, "new") for each in page]
    assert there == ["new/b", "new/é"]
    assert obstore.list_with_delimiter(store)["common_prefixes"] == ["given", "new"]
    step("copied and listed")
    obstore.delete(store, ["new/é", "new/b"])
    assert not list(obstore.list(store, "new"))
    step("deleted")
    obstore.put(store, "parts", BIG, use_multipart=True)
    assert bytes(obstore.get(store, "parts").bytes()) == BIG
    step("in parts")


def pyarrow() -> None:
    import pyarrow
    import pyarrow.fs
    import pyarrow.parquet

    far = datetime(2099, 1, 1, tzinfo=timezone.utc)
    where = {"scheme": "http", "endpoint_override": URL.partition("//")[2]}
    files = pyarrow.fs.GcsFileSystem(
        access_token=TOKEN, credential_token_expiration=far, project_id="berg-local", **where
    )
    table = pyarrow.table({"n": list(range(1000)), "text": [str(n) for n in range(1000)]})
    pyarrow.parquet.write_table(table, f"{BUCKET}/d/table.parquet", filesystem=files)
    step("written")
    assert pyarrow.parquet.read_table(f"{BUCKET}/d/table.parquet", filesystem=files) == table
    step("read")
    with files.open_output_stream(f"{BUCKET}/d/big") as out:
        out.write(BIG)
    with files.open_input_file(f"{BUCKET}/d/big") as file:
        file.seek(100)
        assert file.read(50) == BIG[100:150] and file.size() == len(BIG)
    step("seek")
    found = files.get_file_info(pyarrow.fs.FileSelector(f"{BUCKET}/d", recursive=True))
    assert {each.base_name for each in found} == {"table.parquet", "big"}
    step("list")
    files.copy_file(f"{BUCKET}/d/big", f"{BUCKET}/e")
    files.move(f"{BUCKET}/e", f"{BUCKET}/f")
    files.delete_file(f"{BUCKET}/f")
    files.delete_file(f"{BUCKET}/d/big")
    files.delete_file(f"{BUCKET}/d/table.parquet")
    assert files.get_file_info(f"{BUCKET}/f").type == pyarrow.fs.FileType.NotFound
    step("copied, moved and deleted")


def tensorstore() -> None:
    import tensorstore

    os.environ["TENSORSTORE_GCS_HTTP_URL"] = URL
    store = {"driver": "gcs", "bucket": BUCKET, "path": "arrays/"}
    kept = tensorstore.KvStore.open(store).result()
    kept.write("key", b"value").result()
    assert kept.read("key").result().value == b"value"
    step("key")
    meta = {"dtype": "<i4", "shape": [100, 100], "chunks": [50, 50]}
    spec = {"driver": "zarr", "kvstore": {**store, "path": "arrays/z/"}, "metadata": meta}
    array = tensorstore.open(spec, create=True).result()
    array[10:20, 30:70] = 7
    again = tensorstore.open({"driver": "zarr", "kvstore": spec["kvstore"]}).result()
    assert again[15, 40].read().result() == 7 and again[0, 0].read().result() == 0
    step("array")
    old = kept.read("key").result().stamp.generation
    kept.write("key", b"new", if_equal=old).result()
    assert kept.write("key", b"late", if_equal=old).result().generation != old
    assert kept.read("key").result().value == b"new"
    step("generation")
    assert b"key" in kept.list().result()
    kept.delete_range(tensorstore.KvStore.KeyRange()).result()
    assert not kept.list().result()
    step("listed and deleted")


{"obstore": obstore, "pyarrow": pyarrow, "tensorstore": tensorstore}[CLIENT]()
