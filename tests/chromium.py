"""A real browser for the tests of pages: Chromium without a window, told what to do through a pipe.

https://chromedevtools.github.io/devtools-protocol/
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
MISSING = "Chromium is not installed. Install it: apt-get install chromium"
SECONDS = 30


class Browser:
    """One page, and what it wrote to its console; `with` ends it."""

    def __init__(self, folder: Path, *more: str):
        assert PROGRAM
        to_read, self.to = os.pipe()
        self.of, to_write = os.pipe()
        command = [
            PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", *more,
            f"--user-data-dir={folder}/profile", "--no-first-run", "--no-proxy-server",
            "--disable-sync", "--disable-background-networking", "--disable-component-update",
            "--disable-default-apps", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--disable-dev-shm-usage", "--dns-prefetch-disable",
            "--disable-features=MediaRouter,OptimizationHints,Translate,AsyncDns",
            "--window-size=1200,900", "about:blank",
        ]  # fmt: skip

        def place() -> None:  # where Chromium looks for the pipe
            ours = os.dup(to_read), os.dup(to_write)
            os.dup2(ours[0], 3)
            os.dup2(ours[1], 4)

        with (folder / "chromium.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=place, pass_fds=(3, 4)
            )
        os.close(to_read)
        os.close(to_write)
        self.rest, self.count, self.session, self.said = b"", 0, "", []
        (target,) = [
            each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"
        ]
        self.session = self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.of)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            heard = self.hear()
            if heard.get("id") == self.count:
                assert "error" not in heard, heard
                return heard["result"]

    def hear(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            piece = os.read(self.of, 1 << 20)
            assert piece, "Chromium is gone"
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        heard = json.loads(message)
        if heard.get("method") in (
            "Runtime.exceptionThrown",
            "Log.entryAdded",
            "Network.requestWillBeSent",
        ):
            self.said.append(heard)
        return heard

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def eval(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = SECONDS) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.holds(expression):
            assert time.monotonic() < end, f"{expression} was not true within {seconds} s"
            time.sleep(0.1)

    def holds(self, expression: str) -> bool:
        try:
            return self.eval(f"Boolean({expression})")
        except AssertionError:  # between two pages there is none
            return False

    def click(self, selector: str, meanwhile: str = "") -> None:
        """Press the button there and release it; `meanwhile` is evaluated while it is down."""
        for what in ("mousePressed", "mouseReleased"):
            where = self.middle(selector)
            self.call("Input.dispatchMouseEvent", type=what, button="left", clickCount=1, **where)
            if meanwhile and what == "mousePressed":
                self.eval(meanwhile)

    def middle(self, selector: str) -> dict[str, float]:
        find = f"document.querySelector({json.dumps(selector)})"
        self.wait(find)
        self.eval(f"{find}.scrollIntoView({{block: 'center'}})")
        return self.eval(
            f"(b => ({{x: b.x + b.width / 2, y: b.y + b.height / 2}}))({find}.getBoundingClientRect())"
        )

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    @property
    def errors(self) -> list[str]:
        """What went wrong in its pages: exceptions, and what they were not allowed."""
        wrong = [each for each in self.said if each["method"] != "Network.requestWillBeSent"]
        return [json.dumps(each["params"]) for each in wrong if "favicon" not in json.dumps(each)]

    @property
    def asked(self) -> list[str]:
        sent = [each for each in self.said if each["method"] == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]
