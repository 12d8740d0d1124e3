"""ldt serve: a fine-tuned model answers over HTTP."""

import os
import signal
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from ldt import errors
from ldt.cli.options import Device, Precision, Runtime, Workers, keyed, takes
from ldt.inference.options import flags, meanings

KEY = "LDT_API_KEY"
Count = Annotated[int, typer.Option(min=1, metavar="NUMBER")]


def serve(
    run: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN] [KEY=VALUE]", show_default=False)
    ] = None,
    host: Annotated[str, "ADDRESS"] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="NUMBER")] = 8080,
    api_key_file: Annotated[Path | None, "FILE"] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    runtime: Runtime = "torch",
    workers: Workers = "1",
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", show_default="2,048; 16,384 on a GPU, up to that of a small model"
        ),
    ] = None,
    max_concurrent_requests: Count = 512,
    max_client_batch_size: Count = 32,
    payload_limit: Annotated[int, typer.Option(min=1, metavar="BYTES", show_default="16 MiB")] = 16
    << 20,
    request_timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS")] = 600.0,
    drain_timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS")] = 60.0,
) -> int:
    """Answer requests over HTTP, as ldt predict answers for files.

    Clients of Hugging Face's text-embeddings-inference (/predict) and of huggingface_hub
    (InferenceClient) are understood. Long documents are read to their end. SIGTERM lets what is
    there be answered, and ends with the exit code 0.

    Example: ldt serve runs/contracts --port 8080

    Args:
        run: Folder of the finished run whose model answers, by default runs/latest. Then keys that
            say how documents are read, such as data.text=body.
        host: Address to listen at; another than this machine's own needs an API key.
        port: Port to listen at; 0 takes a free one.
        api_key_file: File with the key that callers must have; by default that in LDT_API_KEY, if
            any.
        max_concurrent_requests: Number of documents that may wait for their answers.
        max_client_batch_size: Number of documents that a request may hold.
        payload_limit: Size of the largest request, in bytes.
        request_timeout: Time that a request may take.
        drain_timeout: Time that requests have to end after a SIGTERM.
    """
    try:
        from ldt.serve import server
    except ModuleNotFoundError as error:
        raise errors.UserError(
            f"{error.name} is not installed; pip install 'ldt-toolkit[serve]' has it"
        ) from None
    from ldt.serve.app import App
    from ldt.serve.limits import ServerLimits
    from ldt.serve.model import Served

    with flags(FLAGS):
        folders, keys = keyed(run or (), KEYS)
        if len(folders) > 1:
            raise errors.UserError(f"{folders[1]}: a server has one run, {folders[0]}")
        _need_no_temporary_files()
        key = _key(api_key_file)
        server.check_key(host, key)
        place = server.bound(host, port)
        options: dict[str, Any] = {"device": device, "precision": precision, "runtime": runtime}
        options |= {"workers": workers} | keys
        if batch_tokens is not None:
            options["batch_tokens"] = batch_tokens
        served = Served(folders[0] if folders else None, **options)
    limits = ServerLimits(
        places=max_concurrent_requests,
        documents=max_client_batch_size,
        body=payload_limit,
        bodies=4 * payload_limit,
        seconds=request_timeout,
        reading=min(request_timeout, ServerLimits.reading),
    )
    with closing(served):
        status = server.run(App(served, limits, key), place, drain_timeout)
    return errors.EXIT_SIGINT if status == signal.SIGINT else errors.EXIT_OK


# Keys of reading that fields of a request have use for.
KEYS = {
    name: meaning
    for name, meaning in meanings().items()
    if name in ("data.text", "data.id", "data.fields", "data.max_length")
}
FLAGS = takes(serve, KEYS)


def _need_no_temporary_files() -> None:
    """Let modules be imported that ask for a folder of such files, where none can be written."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = os.curdir


def _key(file: Path | None) -> str | None:
    if file is None:
        where, key = KEY, os.environ.get(KEY)
    else:
        where = f"--api-key-file {file}"
        try:
            key = file.read_text("ascii").strip()
        except (OSError, UnicodeError) as error:
            what = getattr(error, "strerror", None) or "other characters than ASCII"
            raise errors.UserError(f"{where}: {what}") from None
    if key is not None and not (key.isascii() and key.isprintable() and key.split() == [key]):
        raise errors.UserError(f"{where}: a key is one word of ASCII characters")
    return key
