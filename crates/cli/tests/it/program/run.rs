//! `trunkline run`: one command on many hosts.

mod commands;
mod lists;
mod output;
mod prompt;
mod rolling;
mod sudo;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use trunkline_testkit::{Relay, Sshd};

use crate::home::{
    Home, assert_says, assert_status, boxes, closed_address, describe, fail, finish, finish_with, program,
    server, sshd, succeed, text, with_status,
};

/// A server that is many hosts, box1 and so on, each at an address of its own.
struct Fleet {
    server: Sshd,
    home: Home,
    config: PathBuf,
}

impl Fleet {
    fn with_hosts(hosts: u8) -> Self {
        // More logins at once than sshd would take by default.
        let builder = sshd().any_loopback_address().config("MaxStartups 100:30:200");
        let (server, home) = (builder.start().unwrap(), Home::new());
        let config = home.config(boxes(&server, hosts));
        Self { server, home, config }
    }

    fn run(&self, options: &[&str], command: &str) -> Output {
        finish(self.command(options).args(["--", command]))
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut run = self.home.trunkline();
        run.args(["run", "-F"]).arg(&self.config).args(options);
        run
    }

    /// The names of hosts that are reached.
    fn names(&self, options: &[&str]) -> Vec<String> {
        let mut run = self.home.command_with_ansible(program());
        run.args(["run", "-F"]).arg(&self.config).args(options);
        let output = succeed(run.args(["--json", "--", "true"]));
        json(&output).into_keys().collect()
    }
}

/// The lines of `--json`, by host.
fn json(output: &Output) -> std::collections::BTreeMap<String, serde_json::Value> {
    let lines = text(&output.stdout);
    let objects = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    objects
        .map(|object| (object["host"].as_str().unwrap().to_owned(), object))
        .collect()
}

#[test]
fn hosts_are_named_by_ranges_patterns_files_and_inventories() {
    let fleet = Fleet::with_hosts(4);
    let names = |options: &[&str]| fleet.names(options);
    assert_eq!(names(&["-H", "box[1-3]"]), ["box1", "box2", "box3"]);
    assert_eq!(names(&["-H", "box2,box4", "-H", "box2"]), ["box2", "box4"]);
    assert_eq!(names(&["-H", "box*"]), ["box1", "box2", "box3", "box4"]);
    let list = fleet.home.path("list");
    fs::write(&list, "box1\n# not this\nbox3\n").unwrap();
    assert_eq!(names(&["-H", &format!("@{}", list.display())]), ["box1", "box3"]);
    let inventory = fleet.home.path("hosts.ini");
    let port = fleet.server.port();
    let ini = format!("[web]\nbox[1:2]\nw9 ansible_host=127.0.1.4 ansible_port={port}\n[db]\nbox3\n");
    fs::write(&inventory, ini).unwrap();
    let inventory = inventory.to_str().unwrap();
    assert_eq!(
        names(&["-i", inventory, "--limit", "!w9"]),
        ["box1", "box2", "box3"]
    );
    assert_eq!(names(&["-i", inventory, "-H", "db"]), ["box3"]);
    assert_eq!(names(&["-H", "box*,!box[2-3]"]), ["box1", "box4"]);
    let case = fleet.run(&["-H", "BOX*"], "true");
    assert_says(&case, "no Host alias of ssh_config matches");
}

/// Inventories and patterns are Ansible's: it decides where an inventory leads and which of its hosts a pattern means.
#[test]
fn inventories_mean_what_they_mean_to_ansible() {
    let fleet = Fleet::with_hosts(6);
    let write = |name: &str, text: &str| {
        let path = fleet.home.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let ini = format!(
        "box6\n[web]\nbox[1:2]\nw9 ansible_host=box5\n[db]\nbox3 # the first\nbox4\n\
         [prod:children]\nweb\ndb\n[prod:vars]\nansible_ssh_common_args='-F {}'\n",
        fleet.config.display()
    );
    let yaml = "all:\n  hosts: {box6: }\n  children:\n    prod:\n      children:\n        web: {hosts: {'box[1:2]': }}\n\
                \x20       db: {hosts: {box3: , box4: }}\n    staging: {hosts: {box2: , box4: , box5: }}\n";
    let merged = write("merged/1.ini", "[web]\nbox1\nbox2\n[db]\nbox3\n");
    let merged = merged.trim_end_matches("/1.ini").to_owned();
    write("merged/2.yml", "staging: {hosts: {box3: , other: }}\n");
    write("merged/host_vars/other.yml", "ansible_host: box1\n");
    let inventories = [
        (
            write("hosts.ini", &ini),
            vec!["all", "prod:!db", "web[0]", "box*:&db", "ungrouped", "~box[13]"],
        ),
        (
            write("hosts.yml", yaml),
            vec!["prod:&staging", "staging,!db", "web[-1]"],
        ),
        (merged, vec!["all", "staging"]),
        (
            write("case.ini", "[prod]\nbox1\nbox2\n[BOX]\nbox6\n[box]\nbox5\nbox1\n"),
            vec![
                "box[0]",
                "*o*[0]",
                "box[1]",
                "BOX*",
                "box*[3]",
                "all:!box[12]*",
                "box[!1-3]",
                "all:!B*",
            ],
        ),
    ];
    for (inventory, patterns) in &inventories {
        for pattern in patterns {
            let mut ansible = fleet.home.command_with_ansible("ansible");
            let listed = succeed(ansible.args([pattern, "-i", inventory, "--list-hosts"]));
            let listed = text(&listed.stdout);
            let mut theirs: Vec<&str> = listed.lines().skip(1).map(str::trim).collect();
            theirs.sort_unstable();
            assert!(!theirs.is_empty(), "{listed}");
            assert_eq!(
                fleet.names(&["-i", inventory, "-H", pattern]),
                theirs,
                "{inventory} {pattern}"
            );
        }
    }

    let script = "exec \"$T\" run -F \"$F\" -i <(printf '[a]\\nbox1\\n[b]\\nbox2\\n') -H b --json -- true";
    let mut piped = fleet.home.command_with_ansible("bash");
    let piped = piped
        .args(["-c", script])
        .env("T", program())
        .env("F", &fleet.config);
    let output = succeed(piped);
    assert_eq!(json(&output).into_keys().collect::<Vec<_>>(), ["box2"]);

    let mut without = fleet.command(&["-i", &inventories[0].0]);
    let output = fail(255, without.env("PATH", "/nowhere").args(["--", "true"]));
    assert_says(&output, "ansible-inventory, which is not on the PATH");
}

/// A host of which the inventory says what only a playbook or another plugin can use failed, and is not left out of the
/// count.
#[test]
fn hosts_that_their_inventory_does_not_lead_to_have_failed() {
    let fleet = Fleet::with_hosts(1);
    let inventory = fleet.home.path("hosts.ini");
    let ini = "[web]\nlocal ansible_connection=local\nbox1\ntemplate ansible_host='{{ ip }}'\n";
    fs::write(&inventory, ini).unwrap();
    let (inventory, failed) = (inventory.to_str().unwrap(), fleet.home.path("failed"));
    let failed_option = failed.to_str().unwrap();
    let mut run = fleet.home.command_with_ansible(program());
    run.args(["run", "-F"])
        .arg(&fleet.config)
        .args(["-i", inventory, "-H", "web"]);
    let output = fail(1, run.args(["--failed", failed_option, "--json", "--", "true"]));
    let hosts = json(&output);
    assert_eq!(hosts["box1"]["status"], 0);
    for (name, why) in [("local", "not ssh"), ("template", "a running playbook")] {
        let host = &hosts[name];
        assert_eq!(
            (&host["kind"], &host["execution"]),
            (&"configuration".into(), &"did not start".into())
        );
        assert!(host["error"].as_str().unwrap().contains(why), "{host}");
    }
    assert_says(&output, "1 succeeded");
    assert_says(&output, "2 failed");
    assert_eq!(fs::read_to_string(&failed).unwrap(), "local\ntemplate\n");

    let mut copy = fleet.home.command_with_ansible(program());
    copy.args(["cp", "-F"]).arg(&fleet.config).args(["-i", inventory]);
    let output = fail(
        1,
        copy.arg(&fleet.config)
            .arg(format!(":{}", fleet.home.path("{host}").display())),
    );
    assert_says(&output, "3 hosts");
    assert_says(&output, "1 succeeded");
    assert_says(&output, "2 failed");
    assert!(fleet.home.path("box1").exists());

    let mut stream = fleet.home.command_with_ansible(program());
    stream
        .args(["stream", "--restart", "never", "-F"])
        .arg(&fleet.config);
    let output = fail(
        1,
        stream.args(["-i", inventory, "--to", "-", "--", "echo", "here"]),
    );
    assert_eq!(text(&output.stdout), "here\n");
    assert_says(&output, "local: its ansible_connection is");
}

#[test]
fn json_tells_everything_about_each_host() {
    let fleet = Fleet::with_hosts(2);
    let output = with_status(
        1,
        fleet.run(
            &["-H", "box[1-2]", "--json"],
            "echo out; printf '\\377' >&2; exit 3",
        ),
    );
    let hosts = json(&output);
    for name in ["box1", "box2"] {
        let host = &hosts[name];
        assert_eq!((&host["kind"], &host["status"]), (&"exited".into(), &3.into()));
        assert_eq!(
            (&host["stdout"], &host["stderr_base64"]),
            (&"out\n".into(), &"/w==".into())
        );
        assert_eq!(
            (&host["execution"], &host["warm"]),
            (&"finished".into(), &false.into())
        );
        assert!(host["error"].is_null() && host["signal"].is_null() && host["seconds"].is_number());
    }
    let again = json(&fleet.run(&["-H", "box[1-2]", "--json"], "kill -KILL $$"));
    assert_eq!(
        (&again["box1"]["kind"], &again["box1"]["signal"]),
        (&"signaled".into(), &"KILL".into())
    );
    assert_eq!(again["box1"]["warm"], true);
}

#[test]
fn lines_of_hosts_are_never_mixed() {
    let fleet = Fleet::with_hosts(10);
    let output = with_status(
        0,
        fleet.run(
            &["-H", "box[1-10]"],
            "for i in $(seq 300); do echo \"$SSH_CONNECTION $i\"; done; printf end",
        ),
    );
    let mut count = 0;
    for line in text(&output.stdout).lines() {
        let (host, rest) = line.split_once(": ").unwrap_or_else(|| panic!("{line:?}"));
        let number: u8 = host.trim().strip_prefix("box").unwrap().parse().unwrap();
        assert!(
            rest == "end" || rest.contains(&format!(" 127.0.1.{number} ")),
            "{line:?}"
        );
        count += 1;
    }
    assert_eq!(count, 10 * 301);
}

#[test]
fn one_host_that_cannot_be_reached_leaves_the_others_alone() {
    let fleet = Fleet::with_hosts(20);
    let closed = closed_address();
    let mut config = fs::read_to_string(&fleet.config).unwrap();
    config = format!(
        "{}\n{config}",
        fleet.server.host_entry("box7").with_address(closed)
    );
    fs::write(&fleet.config, config).unwrap();
    let output = with_status(
        1,
        fleet.run(&["-H", "box[1-20]", "-j", "3", "--json"], "echo ran"),
    );
    let hosts = json(&output);
    assert_eq!(hosts.len(), 20);
    assert_eq!(hosts.values().filter(|host| host["status"] == 0).count(), 19);
    let down = &hosts["box7"];
    assert_eq!(
        (&down["kind"], &down["execution"]),
        (&"network".into(), &"did not start".into())
    );
    assert!(
        down["error"].as_str().unwrap().contains("Connection refused"),
        "{down}"
    );
    assert_says(&output, "19 succeeded");
    assert_says(&output, "1 failed");
}

#[test]
fn a_stalled_host_costs_only_its_own_time() {
    let fleet = Fleet::with_hosts(3);
    let relay = Relay::start(fleet.server.addr()).unwrap();
    fleet.server.trust_at(relay.addr()).unwrap();
    relay.stall();
    let config = fs::read_to_string(&fleet.config).unwrap();
    fs::write(
        &fleet.config,
        format!(
            "{}\n{config}",
            fleet.server.host_entry("stalled").with_address(relay.addr())
        ),
    )
    .unwrap();
    let output = with_status(
        1,
        fleet.run(&["-H", "stalled,box[1-3]", "--timeout", "3", "--json"], "true"),
    );
    let hosts = json(&output);
    assert_eq!(hosts["stalled"]["kind"], "timeout");
    assert_eq!(hosts["stalled"]["execution"], "did not start");
    // It is the last: the others did not wait for it.
    assert!(
        text(&output.stdout)
            .lines()
            .last()
            .unwrap()
            .contains("\"stalled\"")
    );
    assert_eq!(hosts.values().filter(|host| host["status"] == 0).count(), 3);
}

#[test]
fn equal_output_is_shown_once() {
    let fleet = Fleet::with_hosts(4);
    let output = with_status(
        0,
        fleet.run(
            &["-H", "box[1-4]", "--collate"],
            "case \"$SSH_CONNECTION\" in *127.0.1.4*) echo odd;; *) echo even;; esac",
        ),
    );
    let shown = text(&output.stdout);
    assert_eq!(
        (shown.matches("even").count(), shown.matches("odd").count()),
        (1, 1),
        "{shown}"
    );
    assert!(shown.contains("box[1-3]"), "{shown}");
}

#[test]
fn output_goes_to_files_too() {
    let fleet = Fleet::with_hosts(2);
    let directory = fleet.home.path("out/put");
    let options = ["-H", "box[1-2]", "-O", directory.to_str().unwrap()];
    assert_status(&fleet.run(&options, "echo out; echo err >&2"), 0);
    for host in ["box1", "box2"] {
        assert_eq!(
            fs::read_to_string(directory.join(format!("{host}.stdout"))).unwrap(),
            "out\n"
        );
        assert_eq!(
            fs::read_to_string(directory.join(format!("{host}.stderr"))).unwrap(),
            "err\n"
        );
    }
}

#[test]
fn many_commands_cost_one_login_a_host() {
    let (server, home) = (server(), Home::new());
    for _ in 0..3 {
        let mut run = home.trunkline();
        run.args(["run", "-F"])
            .arg(server.ssh_config())
            .args(["-H", server.alias(), "--", "exit", "2"]);
        fail(1, &mut run);
    }
    let output = home.run_on(&server, "exit 7");
    assert_status(&output, 7);
    assert_eq!(server.authentications(), 1);
}

/// A host's part of what `command` prints, by its name.
fn outputs(output: &Output) -> std::collections::BTreeMap<String, String> {
    json(output)
        .into_iter()
        .map(|(host, object)| (host, object["stdout"].as_str().unwrap_or_default().to_owned()))
        .collect()
}

#[test]
fn every_host_gets_all_of_the_input_also_those_that_begin_later() {
    let fleet = Fleet::with_hosts(50);
    // More than pipes and windows hold, and no two pieces alike.
    let input: Vec<u8> = (0..600_000u32).flat_map(u32::to_le_bytes).collect();
    let file = fleet.home.path("input");
    fs::write(&file, &input).unwrap();
    let sum = finish(
        fleet
            .home
            .command("sha256sum")
            .stdin(fs::File::open(&file).unwrap()),
    );
    let sum = text(&sum.stdout);
    for jobs in ["2", "100"] {
        // Box 7 takes none of it, and box 9 a part.
        let command =
            "case \"$SSH_CONNECTION\" in *127.0.1.7*) exit 3;; *127.0.1.9*) head -c 5;; *) sha256sum;; esac";
        let options = ["-H", "box[1-50]", "-j", jobs, "--json"];
        let piped = finish_with(fleet.command(&options).args(["--", command]), &input);
        let mut from_file = fleet.command(&options);
        from_file
            .args(["--", command])
            .stdin(fs::File::open(&file).unwrap());
        for output in [piped, finish(&mut from_file)] {
            assert_status(&output, 1);
            let shown = outputs(&output);
            for n in 1..=50 {
                let shown = &shown[&format!("box{n}")];
                match n {
                    7 => assert_eq!(shown, ""),
                    9 => assert_eq!(shown.as_bytes(), &input[..5]),
                    _ => assert_eq!(*shown, sum, "box{n}"),
                }
            }
        }
    }
}

#[test]
fn a_script_on_standard_input_runs_on_every_host() {
    let fleet = Fleet::with_hosts(3);
    let options = ["-H", "box[1-3]", "--json"];
    let script = b"echo \"ran $1\"\nexit 4\n";
    for no_daemon in [false, true] {
        let mut run = fleet.home.trunkline();
        if no_daemon {
            run.arg("--no-daemon");
        }
        run.args(["run", "-F"]).arg(&fleet.config).args(options);
        let output = with_status(1, finish_with(run.args(["--", "bash -s x"]), script));
        for host in json(&output).values() {
            assert_eq!((&host["stdout"], &host["status"]), (&"ran x\n".into(), &4.into()));
        }
    }
}

#[test]
fn without_input_commands_get_its_end() {
    let fleet = Fleet::with_hosts(2);
    // `finish` gives /dev/null.
    let output = fleet.run(&["-H", "box[1-2]", "--json"], "cat; echo end");
    assert!(
        outputs(&output).values().all(|shown| shown == "end\n"),
        "{}",
        describe(&output)
    );
    for option in ["-n", "--no-input"] {
        let mut run = fleet.command(&["-H", "box[1-2]", "--json", option]);
        let output = finish_with(run.args(["--", "cat; echo end"]), b"input");
        assert!(
            outputs(&output).values().all(|shown| shown == "end\n"),
            "{}",
            describe(&output)
        );
    }
}

#[test]
fn a_file_is_read_from_where_it_stands() {
    let fleet = Fleet::with_hosts(2);
    let list = fleet.home.path("list");
    fs::write(&list, "first\nsecond\n").unwrap();
    let mut shell = fleet.home.command("bash");
    let script = "exec < \"$LIST\"; read line; \"$T\" run -F \"$F\" -H 'box[1-2]' --json -- cat";
    shell
        .args(["-c", script])
        .env("LIST", &list)
        .env("F", &fleet.config);
    shell.env("T", crate::home::program());
    let output = succeed(&mut shell);
    assert!(
        outputs(&output).values().all(|shown| shown == "second\n"),
        "{}",
        describe(&output)
    );
}

/// Returns whether a process has this argument.
fn runs(argument: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == argument.as_bytes())
    })
}

/// A number of seconds that no other test sleeps.
fn nap(n: u32) -> String {
    format!("{}{n}", 1_000_000 + std::process::id())
}

#[test]
fn an_interrupted_run_ends_its_commands_and_says_how_far_each_host_was() {
    for (n, no_daemon) in [(1, false), (2, true)] {
        let (server, home) = (trunkline_testkit::Dropbear::start_default().unwrap(), Home::new());
        let nap = nap(n);
        let entries = ["box1", "box2", "box3"].map(|name| server.host_entry(name));
        let config = home.config(entries);
        let mut run = home.trunkline();
        if no_daemon {
            run.arg("--no-daemon");
        }
        run.args(["run", "-j", "1", "-F"]).arg(&config);
        run.args(["-H", "box[1-3]", "--", &format!("exec sleep {nap}")]);
        let mut child = run.stderr(std::process::Stdio::piped()).spawn().unwrap();
        crate::home::wait_until("the command runs", || runs(&nap));
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::INT,
        )
        .unwrap();
        let status = crate::home::end_of(&mut child, "an interrupted run");
        assert_eq!(status.signal(), Some(2));
        crate::home::wait_until("the command is gone", || !runs(&nap));
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        let expected = "interrupted; running, sent SIGTERM: box1; not started: box[2-3]";
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_command_whose_time_is_up_is_ended() {
    for (n, no_daemon) in [(3, false), (4, true)] {
        let (server, home) = (trunkline_testkit::Dropbear::start_default().unwrap(), Home::new());
        let nap = nap(n);
        let mut run = home.trunkline();
        if no_daemon {
            run.arg("--no-daemon");
        }
        run.args(["run", "-t", "3", "-F"]).arg(server.ssh_config());
        run.args(["-H", server.alias(), "--", &format!("exec sleep {nap}")]);
        fail(1, &mut run);
        crate::home::wait_until("the command is gone", || !runs(&nap));
    }
}

#[test]
fn a_client_that_dies_takes_its_command_with_it() {
    use rustix::process::{Pid, Signal, kill_process};
    for (n, signal, no_daemon) in [
        (5, Signal::KILL, false),
        (6, Signal::TERM, false),
        (7, Signal::TERM, true),
        (8, Signal::INT, true),
    ] {
        let (server, home) = (trunkline_testkit::Dropbear::start_default().unwrap(), Home::new());
        let nap = nap(n);
        let mut ssh = home.trunkline();
        if no_daemon {
            ssh.arg("--no-daemon");
        }
        ssh.args(["ssh", "-F"]).arg(server.ssh_config());
        ssh.args([server.alias(), &format!("exec sleep {nap}")]);
        let mut child = ssh.spawn().unwrap();
        crate::home::wait_until("the command runs", || runs(&nap));
        kill_process(Pid::from_child(&child), signal).unwrap();
        crate::home::end_of(&mut child, "the client");
        crate::home::wait_until("the command is gone", || !runs(&nap));
    }
}

#[test]
fn sshd_is_asked_to_end_commands_too() {
    let (server, home) = (server(), Home::new());
    let nap = nap(9);
    let mut run = home.trunkline();
    run.args(["run", "-t", "3", "-F"]).arg(server.ssh_config());
    run.args(["-H", server.alias(), "--", &format!("exec sleep {nap}")]);
    fail(1, &mut run);
    // Up to OpenSSH 9.7, sshd gives signals to every user's commands but root's, and says so.
    crate::home::wait_until("sshd has the signal", || {
        !runs(&nap)
            || server
                .log()
                .count("session signalling requires privilege separation")
                > 0
    });
}

/// The most memory that a process has had, in KiB.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[test]
fn output_without_end_is_kept_on_disk_and_not_in_memory() {
    use std::io::Read as _;
    const LENGTH: usize = 160_000_000;
    let (server, home) = (server(), Home::new());
    for options in [["run", "--json"].as_slice(), &["--no-daemon", "run", "--collate"]] {
        let mut command = home.trunkline();
        command.args(options).arg("-F").arg(server.ssh_config());
        command.args(["-H", server.alias(), "--"]);
        command.arg(format!("head -c {LENGTH} /dev/zero | tr '\\0' x"));
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (mut counted, mut most) = (0, 0);
        let mut piece = vec![0; 1 << 20];
        loop {
            let read = stdout.read(&mut piece).unwrap();
            if read == 0 {
                break;
            }
            counted += piece[..read].iter().filter(|byte| **byte == b'x').count();
            // It waits for its reader, so that the last look comes when all but a pipeful was written.
            most = most.max(peak(child.id()).unwrap_or(0));
        }
        assert!(crate::home::end_of(&mut child, "run").success());
        // The name of a field has one, too.
        assert!(
            (LENGTH..LENGTH + 100).contains(&counted),
            "{options:?}: {counted}"
        );
        assert!((1..100 * 1024).contains(&most), "{options:?}: {most} KiB");
    }
}
