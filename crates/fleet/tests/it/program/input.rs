//! The input of a fleet's commands: standard input, scripts; and other options of `run` for them.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trunkline_testkit::{Sshd, free_port};

use super::Site;
use crate::home::{
    Home, assert_says, assert_status, describe, end_of, fail, finish, finish_with, text, with_status,
};

/// Returns the output of each host, by its name.
fn output_by_host(output: &std::process::Output) -> std::collections::BTreeMap<String, Value> {
    let lines = text(&output.stdout);
    let hosts = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    hosts
        .map(|host| (host["host"].as_str().unwrap().to_owned(), host))
        .collect()
}

impl Site {
    fn with_input(&self, options: &[&str], command: &str, input: &[u8]) -> std::process::Output {
        let mut run = self.home.trunkline();
        run.args(["run", "--fleet", "--json"]).args(options);
        finish_with(run.args(["--", command]), input)
    }

    fn jobs(&self) -> usize {
        self.status()["jobs"].as_array().unwrap().len()
    }
}

#[test]
fn every_host_reads_all_of_the_input_behind_a_script_and_its_variables() {
    let site = Site::start(2);
    // More than one message of NATS, more than one pipe's worth, and every byte.
    let input: Vec<u8> = (0..=255).cycle().take(700_001).collect();
    let sum = "sha256sum | cut -c -64";
    let expected = {
        let mut command = site.home.command("sh");
        text(&finish_with(command.args(["-c", sum]), &input).stdout)
    };
    let output = with_status(0, site.with_input(&["-H", "box[1-6]"], sum, &input));
    let hosts = output_by_host(&output);
    assert_eq!(hosts.len(), 6, "{}", describe(&output));
    for host in hosts.values() {
        assert_eq!(host["stdout"], expected, "{host}");
    }
    // What does not read it to its end is well.
    assert_status(&site.with_input(&["-H", "box[1-6]"], "true", &input), 0);

    let script = site.home.script(
        "with space.py",
        "#!/usr/bin/env python3\nimport os, sys\nprint(sys.argv[1:], os.environ['A'], sys.stdin.read())\n",
    );
    let mut run = site.home.trunkline();
    run.args([
        "run",
        "--fleet",
        "--json",
        "-H",
        "box[1-2]",
        "--env",
        "A=it's; $HOME",
        "--script",
    ]);
    run.arg(&script).args(["it's", "{host} {n}", "--json"]);
    let output = with_status(0, finish_with(&mut run, b"the input"));
    assert_eq!(
        output_by_host(&output)["box2"]["stdout"],
        "[\"it's\", 'box2 2', '--json'] it's; $HOME the input\n"
    );
    // Without input, too.
    let mut run = site.home.trunkline();
    run.args([
        "run", "--fleet", "-n", "-N", "-H", "box1", "--env", "A=b", "--script",
    ]);
    let output = finish(run.arg(&script));
    assert_eq!(text(&output.stdout), "[] b \n", "{}", describe(&output));
    site.leave();
}

#[test]
fn an_input_that_is_too_long_or_cut_off_starts_nothing() {
    let site = Site::start(1);
    let long = site.home.path("long");
    fs::File::create(&long).unwrap().set_len((64 << 20) + 1).unwrap();
    let mut run = site.home.trunkline();
    run.args(["run", "--fleet", "-H", "box1", "--", "cat >/dev/null"]);
    let output = fail(255, run.stdin(fs::File::open(&long).unwrap()));
    assert_says(&output, "longer than 64 MiB");
    assert_says(&output, "did not start");

    let mut run = site.home.trunkline();
    run.args(["run", "--fleet", "-H", "box1", "--", "cat"]);
    run.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // More than a pipe holds: it is being read.
    input.write_all(&[7; 256 * 1024]).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(end_of(&mut child, "the run").signal(), Some(2));
    let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(said.contains("did not start on any host"), "{said}");
    assert_eq!(site.jobs(), 0);
    site.leave();
}

#[test]
fn a_host_is_tried_again_where_nothing_may_have_run() {
    let site = Site::start(1);
    let ran = site.home.path("ran");
    // Nobody listens there.
    let port = free_port();
    let try_it = || {
        with_status(
            1,
            site.with_input(
                &["-H", &format!("127.0.0.1:{port}"), "--retry", "1"],
                &format!("touch {}", ran.display()),
                b"",
            ),
        )
    };
    // Nor may a job name the port, until a rule lists it.
    let refused = format!("{:?}", output_by_host(&try_it()));
    assert!(refused.contains("`ports` of the rule"), "{refused}");
    let file = site.nodes[0].0.trunkline_dir().join("fleet.toml");
    let rules = fs::read_to_string(&file).unwrap();
    let listed = rules.replace("hosts = [\"*\"]", &format!("hosts = [\"*\"]\nports = [{port}]"));
    assert_ne!(listed, rules);
    fs::write(&file, listed).unwrap();
    let output = try_it();
    let host = output_by_host(&output).into_values().next().unwrap();
    assert_eq!(host["execution"], "did not start", "{host}");
    // The pause of a second before the second attempt; two clocks measure it.
    assert!(host["seconds"].as_f64().unwrap() > 0.9, "{host}");
    assert!(!ran.exists());
    // One that ran is not: it has returned something.
    let output = site.with_input(
        &["-H", "box1", "--retry", "3"],
        &format!("echo x >>{}; exit 3", ran.display()),
        b"",
    );
    assert_status(&output, 1);
    assert_eq!(fs::read_to_string(&ran).unwrap(), "x\n");
    site.leave();
}

#[test]
fn another_user_needs_no_password_or_is_refused() {
    let home = Home::new();
    let sudo = home.script("bin/sudo", "");
    let path = format!("{}:/usr/bin:/bin", sudo.parent().unwrap().display());
    let server = Sshd::builder().config(&format!("SetEnv SHLVL=1 PATH={path}"));
    let site = Site::with_nodes(1, home, server);
    let script = site.home.script("who", "echo \"$BECAME $(cat)\"\n");
    let as_deploy = || {
        let mut run = site.home.trunkline();
        run.args([
            "run",
            "--fleet",
            "-N",
            "-H",
            "box1",
            "--become=deploy",
            "--script",
        ]);
        finish_with(run.arg(&script), b"input")
    };
    let asks_nobody = "#!/bin/sh\n[ \"$1 $2 $3 $4 $5\" = '-H -n -u deploy --' ] || exit 9\nshift 5; BECAME=$1 exec \"$@\"\n";
    fs::write(&sudo, asks_nobody).unwrap();
    let output = as_deploy();
    assert_eq!(text(&output.stdout), "sh input\n", "{}", describe(&output));
    fs::write(
        &sudo,
        "#!/bin/sh\necho 'sudo: a password is required' >&2; exit 1\n",
    )
    .unwrap();
    let output = with_status(1, as_deploy());
    let said = text(&output.stderr);
    for wanted in [
        "a password is required",
        "sudo did not run the command on box1. A fleet gives it no password",
        "(NOPASSWD in sudoers), or leave out --fleet",
    ] {
        assert!(said.contains(wanted), "{wanted}: {}", describe(&output));
    }
    // A command that fails by itself has nothing to do with sudo.
    fs::write(&sudo, "#!/bin/sh\necho 'disk full' >&2; exit 1\n").unwrap();
    let said = text(&as_deploy().stderr);
    assert!(said.contains("disk full") && !said.contains("sudoers"), "{said}");
    site.leave();
}
