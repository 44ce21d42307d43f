"""The same for asyncio."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trunkline
from conftest import Testbed, run_python, wait_until
from trunkline import aio

T = TypeVar("T")


@pytest.fixture
def on_box(testbed: Testbed) -> Callable[[Callable[[aio.Connection], Awaitable[T]]], T]:
    """Runs a coroutine with a connection, in a loop of its own."""

    def run(body: Callable[[aio.Connection], Awaitable[T]]) -> T:
        async def main() -> T:
            async with aio.connect(testbed.aliases[0], config=testbed.config, daemon=False) as box:
                return await body(box)

        return asyncio.run(main(), debug=True)

    return run


OnBox = Callable[[Callable[[aio.Connection], Awaitable[None]]], None]


def test_a_command_leaves_its_status_and_outputs(on_box: OnBox) -> None:
    async def body(box: aio.Connection) -> None:
        result = await box.run("cat; echo err >&2; exit 3", input="ü")
        assert (result.returncode, result.stdout, result.stderr) == (3, "ü", "err\n")
        with pytest.raises(trunkline.CommandError):
            await box.run("false", check=True)
        with pytest.raises(trunkline.TimeoutError):
            await box.run("sleep 1000", timeout=0.1)

    on_box(body)


def test_a_hundred_commands_at_once_need_no_threads(on_box: OnBox) -> None:
    async def body(box: aio.Connection) -> None:
        await box.run("true")
        before = threading.active_count()
        results = await asyncio.gather(*(box.run(f"echo {number}") for number in range(100)))
        assert [int(result.stdout) for result in results] == list(range(100))
        assert threading.active_count() == before

    on_box(body)


def test_what_opens_something_is_awaited_or_entered(on_box: OnBox, tmp_path: Path) -> None:
    async def body(box: aio.Connection) -> None:
        async with box.sftp() as entered, entered.open(tmp_path / "file", "wb") as file:
            await file.write(b"content")
        with pytest.raises(ValueError, match="closed"):
            await entered.listdir()
        sftp = await asyncio.create_task(box.sftp())
        assert await asyncio.wait_for(sftp.read_bytes(tmp_path / "file"), 30) == b"content"
        with pytest.raises(FileNotFoundError):
            async with sftp.open(tmp_path / "none"):
                pytest.fail("it is not there")
        first, second = await asyncio.gather(box.start("echo 1"), box.start("echo 2"))
        assert [(await each.communicate())[0] for each in (first, second)] == ["1\n", "2\n"]

    on_box(body)


def test_lines_come_by_async_for(on_box: OnBox) -> None:
    async def body(box: aio.Connection) -> None:
        async with box.start("while read line; do echo got $line; done; printf end") as process:
            await process.stdin.write("one\n")
            assert await process.stdout.readline() == "got one\n"
            await process.stdin.write("two\n")
            await process.stdin.close()
            assert [line async for line in process.stdout] == ["got two\n", "end"]
            assert await process.wait() == 0

    on_box(body)


def test_what_is_written_at_once_arrives_in_its_order(on_box: OnBox) -> None:
    async def body(box: aio.Connection) -> None:
        lines = [f"line {number}\n" for number in range(500)]
        for _ in range(5):
            process = await box.start("cat")
            writes = [asyncio.create_task(process.stdin.write(line)) for line in lines]
            reads = [asyncio.create_task(process.stdout.readline()) for _ in lines]
            await asyncio.gather(*writes)
            assert await asyncio.gather(*reads) == lines
            assert await process.communicate() == ("", "")

    on_box(body)


def test_bytes_are_read_as_they_come(on_box: OnBox) -> None:
    async def body(box: aio.Connection) -> None:
        process = await box.start("head -c 3000000 /dev/zero", encoding=None)
        first = await process.stdout.read(10)
        assert 0 < len(first) <= 10
        rest, err = await process.communicate()
        assert (len(first) + len(rest), err, process.returncode) == (3000000, b"", 0)

    on_box(body)


def test_a_wait_that_is_given_up_loses_nothing(on_box: OnBox) -> None:
    async def body(box: aio.Connection) -> None:
        process = await box.start("read line; echo $line; cat")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.stdout.readline(), 0.05)
        await process.stdin.write("kept\n")
        assert await process.stdout.readline() == "kept\n"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.stdout.readline(), 0.05)
        assert await process.communicate("more") == ("more", "")

    on_box(body)


def test_a_cancelled_command_is_closed(on_box: OnBox, tmp_path: Path) -> None:
    async def body(box: aio.Connection) -> None:
        up, gone = tmp_path / "up", tmp_path / "gone"
        # Its output ends when its channel is closed: writing fails then.
        script = f"trap '' HUP PIPE; touch {up}; while echo x; do sleep 0.01; done; touch {gone}"
        task = asyncio.ensure_future(box.run(script))
        await asyncio.get_running_loop().run_in_executor(None, wait_until, up.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.get_running_loop().run_in_executor(None, wait_until, gone.exists)
        assert (await box.run("true")).ok

    on_box(body)


def test_a_closed_connection_says_so(testbed: Testbed) -> None:
    async def main() -> None:
        box = await aio.connect("box1", config=testbed.config, daemon=False, share=False)
        process = await box.start("sleep 1000")
        await process.started()
        box.close()
        with pytest.raises(trunkline.Error):
            await process.wait()
        with pytest.raises(trunkline.ClosedError):
            await box.run("true")

    asyncio.run(main())


def test_connection_errors_are_raised_where_they_are_awaited() -> None:
    async def main() -> None:
        with pytest.raises(trunkline.NetworkError):
            await aio.connect("127.0.0.1", port=1, config="none", daemon=False)
        async with aio.connect("127.0.0.1", port=1, config="none", daemon=False, wait=False) as lazy:
            with pytest.raises(trunkline.NetworkError):
                await lazy.run("true")

    asyncio.run(main())


def test_a_group_answers_as_hosts_complete(testbed: Testbed, tmp_path: Path) -> None:
    async def main() -> None:
        group = aio.Group(["box[1-3]", "no-such-host.invalid"], config=testbed.config, daemon=False)
        results = await group.run("echo x", at_once=2).wait()
        assert [result.ok for result in results] == [True, True, True, False]
        names = {result.host async for result in group.run("true")}
        assert names == set(group.hosts)
        async with group.run("sleep 1000"):
            pass
        copies = await aio.Group("box[1-2]", config=testbed.config, daemon=False).get("/etc/hostname", tmp_path).wait()
        assert [result.unwrap().files for result in copies] == [1, 1]
        assert (tmp_path / "box2" / "hostname").exists()

    asyncio.run(main())


def test_files_are_read_written_listed_and_copied(on_box: OnBox, tmp_path: Path) -> None:
    async def body(box: aio.Connection) -> None:
        content = os.urandom(5_000_000)
        async with box.sftp() as sftp:
            await sftp.mkdir(tmp_path / "a/b", parents=True)
            async with sftp.open(tmp_path / "a/file", "w+b") as file:
                await file.write(content)
                await file.seek(0)
                assert await file.read(10) == content[:10]
                assert b"".join([piece async for piece in file]) == content[10:]
                await file.seek(7)
                assert await file.read() == content[7:]
            assert await sftp.read_bytes(tmp_path / "a/file") == content
            assert await sftp.listdir(tmp_path / "a") == ["b", "file"]
            lines = [b"line %d\n" % number for number in range(500)]
            async with sftp.open(tmp_path / "log", "ab") as log:
                await asyncio.gather(*(log.write(line) for line in lines))
            assert await sftp.read_bytes(tmp_path / "log") == b"".join(lines)
            assert [names for _, names, _ in await sftp.walk(tmp_path / "a")] == [["b"], []]
            assert (await sftp.stat(tmp_path / "a/file")).st_size == len(content)
            with pytest.raises(FileNotFoundError):
                await sftp.read_text(tmp_path / "none")
        assert (await box.get(tmp_path / "a", tmp_path / "copy", recursive=True)).bytes == len(content)
        assert (await box.put(tmp_path / "a/file", tmp_path / "up")).files == 1

    on_box(body)


def test_ports_are_forwarded(on_box: OnBox, testbed: Testbed) -> None:
    async def body(box: aio.Connection) -> None:
        async with box.forward_local(0, ("127.0.0.1", testbed.ports[0])) as forward:
            reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
            assert (await reader.readline()).startswith(b"SSH-2.0-OpenSSH")
            writer.close()
            await writer.wait_closed()

    on_box(body)


def test_loops_that_end_leave_nothing(testbed: Testbed) -> None:
    async def main() -> None:
        async with aio.connect("box1", config=testbed.config, daemon=False) as box:
            await box.run("true")
            # Given up with its loop.
            given_up = asyncio.ensure_future(box.run("sleep 0.2"))
            assert not given_up.done()
            await asyncio.sleep(0)

    asyncio.run(main())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(main())
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_control_c_ends_a_loop_that_waits(testbed: Testbed) -> None:
    program = (
        "import asyncio, os, signal, sys\nfrom trunkline import aio\n"
        "async def main():\n"
        "    async with aio.connect('box1', config=sys.argv[1], daemon=False) as box:\n"
        "        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)\n"
        "        await box.run('sleep 1000')\n"
        "try:\n    asyncio.run(main())\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    )
    done = run_python(program, testbed.config)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


def test_a_connection_is_let_go_when_asked(on_box: OnBox) -> None:
    async def body(box: aio.Connection) -> None:
        first = (await box.run("echo $SSH_CONNECTION")).stdout
        assert await box.disconnect() >= 1
        assert (await box.run("echo $SSH_CONNECTION")).stdout != first

    on_box(body)


def test_a_hosts_directory_that_cannot_be_made_holds_up_nobody(testbed: Testbed, tmp_path: Path) -> None:
    (tmp_path / "box2").touch()

    async def main() -> None:
        group = aio.Group("box[1-3]", config=testbed.config, daemon=False)
        run = group.get("/etc/hostname", tmp_path, at_once=1)
        others = asyncio.gather(*(group.run("true").wait() for _ in range(10)))
        first, second, third = await asyncio.wait_for(run.wait(), 30)
        assert first.ok
        assert isinstance(second.error, trunkline.LocalError)
        assert third.ok
        for results in await asyncio.wait_for(others, 30):
            assert all(result.ok for result in results)

    asyncio.run(main())


def test_an_outcome_that_nobody_can_take_is_not_the_others(testbed: Testbed) -> None:
    def fails(ok: bool, value: object) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        group = aio.Group("box1", config=testbed.config, daemon=False)
        reported: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        runs = [group.run("true") for _ in range(3)]
        bridge = runs[0]._bridge
        bridge._waiting[min(bridge._waiting)] = fails
        await asyncio.sleep(0)
        # The outcomes come in one batch.
        threading.Event().wait(0.5)
        for run in runs[1:]:
            assert (await asyncio.wait_for(run.wait(), 30))[0].ok
        assert [type(error) for error in reported] == [ZeroDivisionError]

    asyncio.run(main())


def test_results_outlive_a_wait_that_was_given_up(testbed: Testbed, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f'test "${{SSH_CONNECTION##* }}" != {testbed.ports[2]} || until test -e {gate}; do sleep 0.01; done'

    async def main() -> None:
        run = aio.Group("box[1-3]", config=testbed.config, daemon=False).run(command)
        waiting = asyncio.create_task(run.wait())
        await asyncio.to_thread(wait_until, lambda: len(run._running) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.touch()
        assert [result.host for result in await run.wait()] == ["box1", "box2", "box3"]

    asyncio.run(main())


def test_tasks_share_the_results_of_one_run(testbed: Testbed) -> None:
    async def main() -> None:
        run = aio.Group("box[1-3]", config=testbed.config, daemon=False).run("true")

        async def hosts() -> list[str]:
            return [result.host async for result in run]

        taken = await asyncio.wait_for(asyncio.gather(hosts(), hosts(), hosts(), hosts()), 30)
        assert sorted(itertools.chain(*taken)) == ["box1", "box2", "box3"]

    asyncio.run(main())


def test_communicate_goes_on_where_its_wait_was_given_up(on_box: OnBox) -> None:
    async def body(box: aio.Connection) -> None:
        process = await box.start("echo first; sleep 0.5; wc -c", encoding=None)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.communicate(b"a" * 20_000_000), 0.3)
        with pytest.raises(ValueError, match="earlier call"):
            await process.communicate(b"more")
        assert await process.communicate() == (b"first\n20000000\n", b"")

    on_box(body)


def test_closing_what_somebody_gave_up_reading_is_not_reported(on_box: OnBox) -> None:
    reported: list[object] = []

    async def body(box: aio.Connection) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with box.start("sleep 1000") as process:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(process.stdout.read(), 0.1)
        pending = process.stdout._pending
        assert pending is not None
        await asyncio.wait([pending])
        del process, pending
        gc.collect()

    on_box(body)
    gc.collect()
    assert reported == []


def test_a_new_name_that_is_there_already_is_file_exists(on_box: OnBox, tmp_path: Path) -> None:
    async def body(box: aio.Connection) -> None:
        path = tmp_path / "file"
        path.touch()
        async with box.sftp() as sftp:
            for making in (sftp.open(path, "xb"), sftp.mkdir(path), sftp.symlink("x", path), sftp.link(path, path)):
                with pytest.raises(FileExistsError):
                    await making

    on_box(body)
