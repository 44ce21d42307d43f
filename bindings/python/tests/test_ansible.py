"""Ansible's connection plugin: playbooks on real servers, by the oldest and the newest ansible-core that it is for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trunkline
from conftest import ANSIBLE_PLAYBOOKS as PLAYBOOKS
from conftest import ANSIBLE_PLUGIN as PLUGIN
from conftest import WORKSPACE, Ansible, Testbed

GUIDE = WORKSPACE / "docs/guide/ansible.md"


@pytest.mark.parametrize("pipelining", ["true", "false"])
def test_commands_files_and_waiting_work_with_any_names(ansible: Ansible, pipelining: str) -> None:
    content = os.urandom(3_000_000)
    (ansible.directory / "large").write_bytes(content)
    ansible.play("connection.yml", ANSIBLE_PIPELINING=pipelining)
    for host in ("box1", "box2", "box3"):
        assert (ansible.directory / "back" / host / "large").read_bytes() == content


@pytest.mark.parametrize("method", ["smart", "piped"])
def test_files_pass_where_there_is_no_sftp(environment: Path, daemon: None, tmp_path: Path, method: str) -> None:
    bed = Testbed("--servers", "3", "--config", "Subsystem other /bin/cat")
    try:
        ansible = Ansible(environment, tmp_path, bed)
        content = os.urandom(3_000_000)
        (ansible.directory / "large").write_bytes(content)
        ansible.play("connection.yml", ANSIBLE_SSH_TRANSFER_METHOD=method)
        for host in ("box1", "box2", "box3"):
            assert (ansible.directory / "back" / host / "large").read_bytes() == content
        done = ansible.run("ansible", "box1", "-m", "copy", "-a", "src=large dest=x", ANSIBLE_SSH_TRANSFER_METHOD="sftp")
        assert done.returncode == 4
        assert "the subsystem sftp" in done.stdout + done.stderr
    finally:
        bed.close()


def test_a_file_that_dd_cannot_write_is_an_error(environment: Path, daemon: None, tmp_path: Path) -> None:
    dd = tmp_path / "bin" / "dd"
    dd.parent.mkdir()
    dd.write_text("#!/bin/sh\necho 'dd: no space left' >&2\nexit 1\n")
    dd.chmod(0o755)
    bed = Testbed("--config", f"SetEnv PATH={dd.parent}:/usr/bin:/bin")
    try:
        ansible = Ansible(environment, tmp_path, bed)
        (ansible.directory / "large").write_bytes(bytes(3_000_000))
        done = ansible.run("ansible", "box1", "-m", "copy", "-a", "src=large dest=x", ANSIBLE_SSH_TRANSFER_METHOD="piped")
        assert done.returncode == 2
        assert "no space left" in done.stdout + done.stderr
    finally:
        bed.close()


def test_a_reset_makes_a_new_connection(ansible: Ansible) -> None:
    ansible.play("reset.yml")


@pytest.mark.parametrize("pipelining", ["true", "false"])
@pytest.mark.parametrize(("sudo", "password"), [("sudo", "secret"), ("sudo.free", None)])
def test_becoming_somebody_gives_the_password_when_asked(
    ansible: Ansible, pipelining: str, sudo: str, password: str | None
) -> None:
    become = ["-b", "-e", f"ansible_become_exe={PLAYBOOKS}/{sudo}"]
    if password:
        become += ["-e", f"ansible_become_password={password}"]
    result = ansible.task("command", "printenv BECAME", *become, ANSIBLE_PIPELINING=pipelining)
    assert (result["rc"], result["stdout"]) == (0, "yes")
    result = ansible.task("raw", "echo $BECAME; exit 3", *become)
    assert (result["rc"], result["stdout"].strip()) == (3, "yes")


@pytest.mark.parametrize(("password", "said"), [("wrong", "Incorrect sudo password"), (None, "Missing sudo password")])
def test_a_wrong_or_missing_password_is_told(ansible: Ansible, password: str | None, said: str) -> None:
    become = ["-b", "-e", f"ansible_become_exe={PLAYBOOKS}/sudo"]
    if password:
        become += ["-e", f"ansible_become_password={password}"]
    done = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", *become)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr


def test_workers_and_runs_share_one_connection_to_each_host(environment: Path, daemon: None, tmp_path: Path) -> None:
    bed = Testbed("--servers", "20")
    try:
        ansible = Ansible(environment, tmp_path, bed)
        for _ in range(2):
            done = ansible.run("ansible", "all", "-m", "ping")
            assert done.stdout.count("SUCCESS") == 20, done.stdout + done.stderr
        logs = [Path(host["log"]).read_text() for host in bed.about["hosts"]]
        assert [len(re.findall(r"^Accepted .* from ", log, re.MULTILINE)) for log in logs] == [1] * 20
    finally:
        bed.close()


def test_a_status_of_255_is_a_failure_and_no_reason_to_give_a_host_up(ansible: Ansible) -> None:
    result = ansible.task("raw", "exit 255")
    assert result["rc"] == 255
    assert not result.get("unreachable")


def test_a_host_that_cannot_be_reached_is_unreachable_and_tried_again_if_wished(ansible: Ansible) -> None:
    nowhere = ("-e", "ansible_port=1", "-vv")
    for become in ([], ["-b"]):
        done = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", *nowhere, *become)
        assert (done.returncode, "UNREACHABLE!" in done.stdout, "ssh_retry" in done.stdout) == (4, True, False), done.stdout
    done = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", *nowhere, ANSIBLE_SSH_RETRIES="1")
    assert (done.returncode, done.stdout.count("ssh_retry: attempt: 1, ")) == (4, 1), done.stdout


def test_who_is_not_let_in_is_told_so_once(ansible: Ansible, testbed: Testbed) -> None:
    log = Path(testbed.about["hosts"][0]["log"])
    before = log.read_text().count("Invalid user nobody-of-that-name")
    done = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", "-u", "nobody-of-that-name", ANSIBLE_SSH_RETRIES="3")
    assert (done.returncode, "UNREACHABLE!" in done.stdout) == (4, True)
    assert log.read_text().count("Invalid user nobody-of-that-name") == before + 1


def test_a_command_whose_connection_is_lost_is_not_run_again(ansible: Ansible) -> None:
    runs = ansible.directory / "runs"
    # The server's process for this connection is the parent of the shell's.
    command = f"echo run >> {runs}; kill -9 $PPID"
    done = ansible.run("ansible", "box1", "-m", "raw", "-a", command, ANSIBLE_SSH_RETRIES="3", ANSIBLE_SSH_USETTY="false")
    assert (done.returncode, "may have run" in done.stdout) == (2, True), done.stdout
    assert runs.read_text() == "run\n"
    assert ansible.task("raw", "echo again")["stdout"].strip() == "again"


#: What people look for in what is shown with -vvv.
SHOWN = (
    "Pipelining is enabled",
    "ESTABLISH SSH CONNECTION FOR USER: ",
    "PUT ",
    "FETCH ",
    "Escalation succeeded",
    "Escalation failed",
    "Escalation requires password",
    "stdout and stderr censored due to no log",
)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ping",),
        ("ping", "-b", "-e", f"ansible_become_exe={PLAYBOOKS}/sudo.free"),
        ("ping", "-b", "-e", f"ansible_become_exe={PLAYBOOKS}/sudo", "-e", "ansible_become_password=wrong"),
        ("ping", "-b", "-e", f"ansible_become_exe={PLAYBOOKS}/sudo"),
        ("ping", "-e", "ansible_pipelining=false"),
        ("copy", "-a", "content=x dest={there}"),
        ("fetch", "-a", "src=/etc/hostname dest={there} flat=yes"),
    ],
    ids=["module", "sudo", "wrong password", "missing password", "not pipelined", "copy", "fetch"],
)
def test_it_shows_what_the_ssh_plugin_shows(ansible: Ansible, arguments: tuple[str, ...]) -> None:
    counts = []
    for plugin in ("ssh", PLUGIN):
        module, *more = (word.format(there=ansible.directory / plugin) for word in arguments)
        done = ansible.run("ansible", "box1", "-vvvv", "-c", plugin, "-m", module, "-e", "ansible_pipelining=true", *more)
        counts.append({phrase: done.stdout.count(phrase) for phrase in SHOWN})
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) > 0


def test_modules_leave_the_input_alone_where_arguments_ask_for_a_terminal(ansible: Ansible) -> None:
    for arguments in ("-tt", "-o RequestTTY=force"):
        result = ansible.task("command", "echo there", "-e", f"ansible_ssh_extra_args='{arguments}'")
        assert result.get("stdout") == "there", result


def test_a_program_that_is_not_run_is_warned_of(ansible: Ansible) -> None:
    for program, warns in (("ssh", False), (os.environ["TRUNKLINE_PROGRAM"], False), ("/opt/ssh-wrapper", True)):
        done = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", ANSIBLE_SSH_EXECUTABLE=program)
        assert ("is not run by" in done.stderr, done.returncode) == (warns, 0), done.stderr


def test_options_say_who_and_where(ansible: Ansible, testbed: Testbed) -> None:
    about = testbed.about["hosts"][0]
    (ansible.directory / "hosts").write_text(
        f"box1 ansible_host={about['address']} ansible_port={about['port']} ansible_user={about['user']} "
        f"ansible_ssh_private_key_file={about['key']} "
        f"ansible_ssh_common_args='-F none -o UserKnownHostsFile={about['known_hosts']}'\n"
    )
    assert ansible.task("raw", "echo there")["stdout"].strip() == "there"
    unknown = f"-F none -o UserKnownHostsFile={ansible.directory}/known -o GlobalKnownHostsFile=none"
    refused = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", "-e", f"ansible_ssh_common_args='{unknown}'")
    assert (refused.returncode, "UNREACHABLE!" in refused.stdout) == (4, True), refused.stdout
    believed = ansible.task("raw", "true", "-e", f"ansible_ssh_common_args='{unknown}'", ANSIBLE_HOST_KEY_CHECKING="false")
    assert believed["rc"] == 0


@pytest.mark.parametrize("words", ["box2", "-- box2", "-C 'box2 box3'", "-o", "-l"])
def test_a_stray_word_among_arguments_sends_no_task_to_another_host(ansible: Ansible, testbed: Testbed, words: str) -> None:
    reached = ansible.directory / "reached"
    for option, arguments in (("common", f"-F {testbed.config} {words}"), ("extra", words)):
        more = ("-e", json.dumps({f"ansible_ssh_{option}_args": arguments}))
        done = ansible.run("ansible", "box1", "-m", "raw", "-a", f"touch {reached}", *more)
        assert (done.returncode, "is not a list of ssh's options" in done.stdout) == (4, True), done.stdout
    more = ("-e", json.dumps({"ansible_ssh_args": words}))
    done = ansible.run("ansible", "box1", "-m", "raw", "-a", f"touch {reached}", *more)
    assert (done.returncode, reached.exists()) == (4, False), done.stdout


def test_a_key_as_a_variable_lets_in_by_the_agent(ansible: Ansible, ssh_agent: Path, testbed: Testbed) -> None:
    about = testbed.about["hosts"][0]
    arguments = f"-F none -o UserKnownHostsFile={about['known_hosts']} -o PreferredAuthentications=publickey"
    (ansible.directory / "hosts").write_text(
        f"box1 ansible_host={about['address']} ansible_port={about['port']} ansible_user={about['user']} "
        f"ansible_ssh_common_args='{arguments}'\n"
    )
    (ansible.directory / "key.json").write_text(json.dumps({"ansible_private_key": Path(about["key"]).read_text()}))
    for _ in range(2):
        assert ansible.task("raw", "echo there", "-e", "@key.json")["stdout"].strip() == "there"
    listed = subprocess.run(["ssh-add", "-L"], check=True, capture_output=True, text=True).stdout
    (public,) = (ansible.directory / "home" / "trunkline").iterdir()
    assert public.read_text() == listed
    alone = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", "-e", "@key.json", SSH_AUTH_SOCK="")
    assert "private_key needs an SSH agent" in alone.stdout + alone.stderr


def test_a_password_lets_in(environment: Path, daemon: None, tmp_path: Path) -> None:
    bed = Testbed("--password", "open sesame")
    try:
        ansible = Ansible(environment, tmp_path, bed)
        only = {"ANSIBLE_SSH_ARGS": "-o PreferredAuthentications=password,keyboard-interactive -o PubkeyAuthentication=no"}
        assert ansible.task("raw", "true", "-e", "{ansible_password: open sesame}", **only)["rc"] == 0
    finally:
        bed.close()


def test_the_key_of_a_token_lets_in_with_its_pin(
    environment: Path, daemon: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (provider,) = {path.resolve() for path in Path("/usr/lib").glob("**/libsofthsm2.so")}
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    key = tmp_path / "key.pem"
    for command in (
        f"openssl genpkey -quiet -algorithm RSA -out {key}",
        "softhsm2-util --init-token --free --label t --pin 1234 --so-pin 4321",
        f"softhsm2-util --import {key} --token t --label k --id 01 --pin 1234",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    key.unlink()
    public = subprocess.check_output(["ssh-keygen", "-D", str(provider)], text=True)
    (tmp_path / "authorized").write_text(public)
    # Short: ansible-core 2.20 and later have a socket in it.
    odd = tempfile.TemporaryDirectory(suffix=" $(sh)")
    bed = Testbed("--config", f"AuthorizedKeysFile {tmp_path}/authorized", "--config", "StrictModes no")
    try:
        ansible = Ansible(environment, tmp_path, bed)
        about = bed.about["hosts"][0]
        # In the servers' own ssh_config nobody may be asked.
        (tmp_path / "hosts").write_text(
            f"box1 ansible_host={about['address']} ansible_port={about['port']} ansible_user={about['user']} "
            f"ansible_ssh_common_args='-F none -o UserKnownHostsFile={about['known_hosts']}'\n"
        )
        options = ["-e", f"ansible_ssh_pkcs11_provider={provider}"]
        for pin in ("1234", "1234", None):
            # Once it is logged in, nobody is asked.
            arguments = [*options, *(["-e", f"ansible_password={pin}"] if pin else [])]
            assert ansible.task("raw", "echo there", *arguments, TMPDIR=odd.name)["stdout"].strip() == "there"
        assert Path(about["log"]).read_text().count("Accepted publickey") == 1
        other = ["-e", "ansible_ssh_extra_args='-o HostKeyAlias=box1'"]
        refused = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", *options, *other, "-e", "ansible_password=no")
        assert (refused.returncode, "UNREACHABLE!" in refused.stdout) == (4, True), refused.stdout
    finally:
        odd.cleanup()
        bed.close()


def test_a_name_in_an_inventory_is_no_option(ansible: Ansible, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    # With a PIN the name is a word among ssh's arguments, without it one of the engine's.
    for more in ([], ["-e", "ansible_ssh_pkcs11_provider=/nowhere.so", "-e", "ansible_password=1234"]):
        host = ["-e", f"ansible_host='-oProxyCommand=touch {proof}'"]
        refused = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", *host, *more)
        assert refused.returncode != 0, refused.stdout
        assert "is not the name of a host" in refused.stdout + refused.stderr, refused.stdout
    assert not proof.exists()


def test_the_plugin_can_be_loaded_before_workers_fork(ansible: Ansible) -> None:
    program = (
        "import sys\nfrom ansible import constants\n"
        "from ansible.plugins.loader import callback_loader, init_plugin_loader\n"
        "init_plugin_loader([])\n"
        "assert callback_loader.get('trunkline.ssh.preload')\n"
        "name = 'ansible_collections.trunkline.ssh.plugins.connection.trunkline'\n"
        "assert name in sys.modules\n"
        "assert constants.config.has_configuration_definition('connection', name)\n"
    )
    done = ansible.run("python", "-c", program)
    assert done.returncode == 0, done.stderr
    pinged = ansible.run("ansible", "all", "-m", "ping", "-vv", ANSIBLE_CALLBACKS_ENABLED="trunkline.ssh.preload")
    assert pinged.stdout.count("SUCCESS") == 3, pinged.stdout


def test_every_exit_status_is_the_task_s(ansible: Ansible) -> None:
    play = [
        {
            "hosts": "box1",
            "gather_facts": False,
            "tasks": [
                {
                    "raw": "exit {{ item }}",
                    "loop": "{{ range(256) | list }}",
                    "register": "done",
                    "failed_when": "done.rc != item",
                },
            ],
        }
    ]
    (ansible.directory / "statuses.json").write_text(json.dumps(play))
    done = ansible.run("ansible-playbook", "statuses.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("changed: [box1] =>") == 256, done.stdout


def read_documentation(ansible: Ansible, plugin: str) -> dict[str, Any]:
    done = ansible.run("ansible-doc", "-t", "connection", plugin, "--json")
    assert done.returncode == 0, done.stderr
    # It reads the plugin's source, of which it understands only plain assignments.
    assert "failed to assign" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)[plugin]["doc"]
    return found


def test_it_has_the_ssh_plugin_s_options_and_the_guide_names_those_that_it_does_not_use(ansible: Ansible) -> None:
    ours, theirs = (read_documentation(ansible, plugin)["options"] for plugin in (PLUGIN, "ssh"))
    (unused,) = re.findall(r"These options of `ssh`'s are not used: (.*?)\.\n", GUIDE.read_text(), re.DOTALL)
    # Those that came or went between 2.16 and 2.19.
    some = {"password_mechanism", "private_key", "private_key_passphrase", "scp_if_ssh", "verbosity"}
    assert set(theirs) | some | {"fleet"} == set(ours)
    not_used = {name for name, option in ours.items() if str(option["description"]).startswith("Not used")}
    assert not_used == set(re.findall("`([a-z_]+)`", unused))

    def names(option: dict[str, Any]) -> set[tuple[str, str]]:
        return {
            (kind, str(entry.get("section", "")) + str(entry.get("key", "")) + str(entry.get("name", "")))
            for kind in ("vars", "env", "ini", "cli", "keyword")
            for entry in option.get(kind, [])
        }

    for option in set(ours) & set(theirs):
        assert names(ours[option]) == names(theirs[option]), option
        assert set(ours[option].get("choices") or ()) == set(theirs[option].get("choices") or ()), option


def test_the_guide_s_lines_reach_every_host(ansible: Ansible) -> None:
    guide = GUIDE.read_text()
    (command,) = re.findall(r"^    (ansible .*)$", guide, re.MULTILINE)
    assert ansible.run(*command.split()).stdout.count("SUCCESS") == 3
    (setting,) = re.findall(r"^    transport = (.*)$", guide, re.MULTILINE)
    assert setting == PLUGIN


def test_the_collection_has_the_package_s_version() -> None:
    galaxy = WORKSPACE / "bindings/python/python/ansible_collections/trunkline/ssh/galaxy.yml"
    assert re.findall(r"^version: (.*)$", galaxy.read_text(), re.MULTILINE) == [trunkline.__version__]
