//! The commands of each host: names in the command, variables, scripts.

use std::fs;

use super::{Fleet, outputs};
use crate::home::{assert_says, assert_status, fail, finish_with, text, with_status};

#[test]
fn the_command_has_the_hosts_name_and_number_in_it() {
    let fleet = Fleet::with_hosts(3);
    let directory = fleet.home.path("logs/{host}/{n}");
    let options = ["-H", "box[1-3]", "-O", directory.to_str().unwrap(), "--json"];
    let output = with_status(0, fleet.run(&options, "n=shell; echo {host} {n} ${n}"));
    assert_eq!(outputs(&output)["box2"], "box2 2 shell\n");
    let written = fs::read_to_string(fleet.home.path("logs/box3/3.stdout")).unwrap();
    assert_eq!(written, "box3 3 shell\n");
}

#[test]
fn variables_reach_the_command_whatever_sshd_accepts() {
    let fleet = Fleet::with_hosts(1);
    let options = ["-H", "box1", "--env", "GREETING=it's; $HOME", "--env", "EMPTY="];
    let output = with_status(0, fleet.run(&options, "sh -c 'echo \"[$GREETING][$EMPTY]\"'"));
    assert_eq!(text(&output.stdout), "box1: [it's; $HOME][]\n");
    let output = fleet.run(&["-H", "box1", "--env", "A B=c"], "true");
    assert_status(&output, 2);
}

#[test]
fn a_script_runs_by_its_first_line_and_leaves_nothing_behind() {
    let fleet = Fleet::with_hosts(1);
    let temporary = fleet.home.path("temporary");
    fs::create_dir(&temporary).unwrap();
    // A file, since where arguments go through a shell, quotes may be lost.
    let script = fleet.home.script(
        "with space.py",
        "#!/usr/bin/env python3\nimport os, sys\nprint(sys.argv[1:], os.listdir(os.environ['TMPDIR']), sys.stdin.read())\n",
    );
    let variable = format!("TMPDIR={}", temporary.display());
    // On one host: both would look into the same directory.
    let mut run = fleet.command(&["-H", "box1", "--json", "--env", &variable, "--script"]);
    run.arg(&script).args(["it's", "{host}", "--json"]);
    let output = with_status(0, finish_with(&mut run, b"the input"));
    assert_eq!(
        outputs(&output)["box1"],
        "[\"it's\", 'box1', '--json'] [] the input\n"
    );
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);

    // Without a first line it is sh's, and what it returns is what the command returns.
    let script = fleet
        .home
        .script("plain", "read line; echo \"$line $#\"; exit 7\n");
    let list = fleet.home.path("list");
    fs::write(&list, "from a file\n").unwrap();
    let mut run = fleet.command(&["-H", "box1", "--script"]);
    run.arg(&script).stdin(fs::File::open(&list).unwrap());
    let output = fail(1, &mut run);
    assert_eq!(text(&output.stdout), "box1: from a file 0\n");
    assert_says(&output, "exit status 7");
    let output = with_status(255, fleet.run(&["-H", "box1", "--script", "/no/such/file"], ""));
    assert_says(&output, "/no/such/file");
}
