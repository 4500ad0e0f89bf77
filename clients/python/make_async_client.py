"""Makes `async_client.py` from `client.py`, so that both clients have the same methods."""

import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).parent / "src/taskyard"
HEADER = '"""The asyncio client: every verb of the queue as a method. Made from `client.py` by `make_async_client.py`."""\n'


def asynchronous(source: str) -> str:
    """The source of the asyncio client."""
    body = source[source.index("\nfrom __future__") :]
    # Methods of the class, but not functions inside methods.
    body = re.sub(r"^    def (?!_)", "    async def ", body, flags=re.MULTILINE)
    body = re.sub(r"\bself\.(_send|[a-z]\w*)\(", r"await self.\1(", body)
    for blocking, other in [
        ("return await self._send(call)[0]", "return (await self._send(call))[0]"),
        ("def __enter__", "async def __aenter__"),
        ("def __exit__", "async def __aexit__"),
        ("The blocking client", "The asyncio client"),
        ("Threads may share it.", "The tasks of an event loop may share it."),
    ]:
        body = body.replace(blocking, other)
    body = re.sub(r"\bClient\b", "AsyncClient", body)
    body = body.replace("from .sender import Sender", "from .async_sender import AsyncSender")
    body = body.replace("(Sender)", "(AsyncSender)").replace("Iterator", "AsyncIterator")
    body = body.replace("Any, Iterable, AsyncIterator,", "Any, AsyncIterator, Iterable,")
    return HEADER + body


if __name__ == "__main__":
    made = asynchronous((FOLDER / "client.py").read_text())
    target = FOLDER / "async_client.py"
    if "--check" in sys.argv:
        sys.exit(0 if target.read_text() == made else "async_client.py is not up to date: run make_async_client.py")
    target.write_text(made)
