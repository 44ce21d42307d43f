//! The audit trail: what is recorded, that nobody can change it unnoticed, and that nothing runs that cannot be recorded.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use trunkline_testkit::Sshd;

use crate::home::{
    Home, assert_says, assert_status, end_of, fail, finish, finish_with, server, succeed, text, wait_until,
    with_status,
};
use crate::mux::stock::Stock;

struct Audited {
    home: Home,
}

/// A session with a forwarding.
struct Forwarded {
    ssh: Child,
    socket: PathBuf,
    target: TcpListener,
}

impl Audited {
    fn new(settings: &str) -> Self {
        let home = Home::new();
        home.settings(settings);
        Self { home }
    }

    fn directory(&self) -> PathBuf {
        self.home.trunkline_dir().join("state/audit")
    }

    fn file(&self) -> PathBuf {
        self.directory().join("audit.jsonl")
    }

    fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.file()).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The records that have these values, once the daemon, which is waited for by nobody, has written one.
    fn find_records(&self, values: &[(&str, &str)]) -> Vec<Value> {
        let mut found = Vec::new();
        wait_until("there is such a record", || {
            found = self.records();
            found.retain(|record| values.iter().all(|(key, value)| record[*key] == *value));
            !found.is_empty()
        });
        found
    }

    /// Ends the daemon, and waits until it has written that it has: `stop` does not.
    fn stop(&self) {
        succeed(self.home.trunkline().arg("stop"));
        wait_until("the daemon has written that it ends", || {
            let text = fs::read_to_string(self.file()).unwrap_or_default();
            text.lines()
                .last()
                .is_some_and(|line| line.contains("\"event\":\"stop\""))
        });
    }

    /// Has a session with a forwarding (`option`: `-L` or `-R`) from a socket to a port, both of this machine, and sends
    /// five bytes through it.
    fn send_five_bytes(&self, server: &Sshd, option: &str) -> Forwarded {
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = target.local_addr().unwrap();
        let socket = self.home.path("forwarded");
        let mut ssh = self.home.ssh(server);
        ssh.arg(option).arg(format!("{}:{to}", socket.display()));
        ssh.args([server.alias(), "echo ready; read x"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut ssh = ssh.spawn().unwrap();
        let mut ready = [0; 6];
        ssh.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(b"five.").unwrap();
        let mut reached = target.accept().unwrap().0;
        let mut come = [0; 5];
        reached.read_exact(&mut come).unwrap();
        Forwarded { ssh, socket, target }
    }

    fn verify(&self, arguments: &[&str]) -> Output {
        finish(self.home.trunkline().args(["audit", "verify"]).args(arguments))
    }
}

#[test]
fn a_session_is_recorded_with_who_what_where_and_how_it_ended() {
    let (server, audited) = (server(), Audited::new("audit = \"on\"\n"));
    let mut command = audited.home.ssh(&server);
    command
        .args(["-o", "SetEnv=HIDDEN=environment-of-mine"])
        .args([server.alias(), "cat; exit 3"]);
    let output = finish_with(&mut command, b"input-of-mine\n");
    assert_status(&output, 3);
    let end = &audited.find_records(&[("event", "end"), ("kind", "session")])[0];
    let begin = &audited.find_records(&[("event", "begin"), ("kind", "session")])[0];
    assert_eq!(begin["id"], end["id"]);
    for record in [begin, end] {
        assert_eq!(record["command"], "cat; exit 3");
        assert_eq!(record["host"], server.alias());
        assert!(record["user"].is_string() && record["port"].is_u64(), "{record}");
        let asker = &record["asker"];
        assert_eq!(asker["uid"], rustix::process::getuid().as_raw());
        assert!(asker["pid"].is_u64(), "{asker}");
        assert!(
            asker["program"].as_str().unwrap().ends_with("trunkline"),
            "{asker}"
        );
        let own = std::env::current_exe().unwrap();
        assert_eq!(asker["started_by"], own.to_str().unwrap());
    }
    assert_eq!(
        (&end["execution"], &end["status"]),
        (&"finished".into(), &3.into())
    );
    assert_eq!(
        (&end["sent_bytes"], &end["received_bytes"]),
        (&14.into(), &14.into())
    );
    assert!(end["seconds"].is_f64());
    let all = fs::read_to_string(audited.file()).unwrap();
    assert!(
        !all.contains("input-of-mine") && !all.contains("environment-of-mine"),
        "{all}"
    );
    for path in [audited.file(), audited.directory().join("head")] {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(
        fs::metadata(audited.directory()).unwrap().permissions().mode() & 0o777,
        0o700
    );

    audited.stop();
    let verified = with_status(0, audited.verify(&[]));
    assert!(
        text(&verified.stdout).starts_with("intact: 4 records"),
        "{verified:?}"
    );
}

#[test]
fn nothing_is_recorded_unless_that_is_asked_for() {
    let (server, audited) = (server(), Audited::new(""));
    assert_status(&audited.home.run_on(&server, "true"), 0);
    assert!(!audited.directory().exists());
    let verified = with_status(255, audited.verify(&[]));
    let said = text(&verified.stderr);
    assert!(
        said.starts_with("trunkline: there is no audit trail in ") && said.contains("`audit = \"on\"`"),
        "{said}"
    );
}

#[test]
fn copies_forwardings_tunnels_and_what_does_not_start_are_recorded() {
    let (server, audited) = (server(), Audited::new("audit = \"on\"\n"));
    let (source, target) = (audited.home.path("source"), audited.home.path("target"));
    fs::write(&source, [7; 1000]).unwrap();
    let place = format!("{}:{}", server.alias(), target.display());
    succeed(
        audited
            .home
            .trunkline()
            .args(["cp", "-F"])
            .arg(server.ssh_config())
            .args([source.to_str().unwrap(), &place]),
    );
    let copy = &audited.find_records(&[("event", "end"), ("kind", "copy")])[0];
    assert_eq!(copy["sources"][0], source.to_str().unwrap());
    assert_eq!(copy["target"], place);
    assert_eq!(
        (&copy["sent_bytes"], &copy["failed_files"]),
        (&1000.into(), &0.into())
    );
    assert_eq!(copy["execution"], "finished");

    let socket = audited.home.path("s");
    let forward = format!("{}:localhost:9", socket.display());
    let mut session = audited.home.ssh(&server);
    succeed(session.args(["-L", &forward, server.alias(), "true"]));
    let forwarding = &audited.find_records(&[("event", "end"), ("kind", "forwarding")])[0];
    let way = forwarding["command"].as_str().unwrap();
    assert!(
        way.starts_with("-L ") && way.ends_with(" to localhost:9"),
        "{way}"
    );
    assert_eq!(forwarding["execution"], "finished");

    let mut tunnel = audited.home.ssh(&server);
    tunnel.args(["-W", &format!("localhost:{}", server.port()), server.alias()]);
    finish_with(&mut tunnel, b"SSH-2.0-me\r\n");
    let tunnel = &audited.find_records(&[("event", "end"), ("kind", "tunnel")])[0];
    assert_eq!(tunnel["command"], format!("localhost:{}", server.port()));
    assert_eq!(tunnel["sent_bytes"], 12);
    assert!(tunnel["received_bytes"].as_u64().unwrap() > 0);

    let mut nowhere = audited.home.ssh(&server);
    nowhere.args(["-p", "1", "-o", "ConnectTimeout=5", server.alias(), "never-run"]);
    fail(255, &mut nowhere);
    let failed = &audited.find_records(&[("event", "end"), ("command", "never-run")])[0];
    assert_eq!(failed["execution"], "did not start");
    assert!(failed["error"].is_string());

    // Another process has its output when time is up.
    let command = "sleep 20 & exit 6";
    let mut late = audited.home.trunkline();
    late.args(["run", "-F"]).arg(server.ssh_config());
    fail(1, late.args(["-t", "3", "-H", server.alias(), command]));
    let late = &audited.find_records(&[("event", "end"), ("command", command)])[0];
    assert_eq!(
        (&late["status"], &late["execution"]),
        (&6.into(), &"finished".into())
    );
    assert!(late["error"].is_string());
}

#[test]
fn a_private_daemon_writes_to_the_same_trail() {
    let (server, audited) = (server(), Audited::new("audit = \"strict\"\n"));
    assert_status(&audited.home.run_on(&server, "true"), 0);
    let mut private = audited.home.trunkline();
    private
        .args(["--no-daemon", "ssh", "-F"])
        .arg(server.ssh_config());
    succeed(private.args([server.alias(), "echo private"]));
    assert_eq!(
        audited
            .find_records(&[("event", "begin"), ("command", "echo private")])
            .len(),
        1
    );
    assert_status(&audited.verify(&[]), 0);
}

#[test]
fn a_killed_daemon_loses_nothing_that_was_begun_and_the_next_goes_on() {
    let (server, audited) = (server(), Audited::new("audit = \"strict\"\n"));
    let mut running = audited.home.ssh(&server);
    let mut running = running
        .args([server.alias(), "echo up; exec sleep 600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    audited.find_records(&[("event", "begin")]);
    kill_process(audited.home.daemon().unwrap(), Signal::KILL).unwrap();
    end_of(&mut running, "the client of a killed daemon");
    // As when the machine had ended in the middle of a line.
    let mut file = fs::OpenOptions::new().append(true).open(audited.file()).unwrap();
    file.write_all(b"{\"number\":3,\"time\":\"2026").unwrap();
    assert_status(&audited.verify(&[]), 1);
    assert_status(&audited.home.run_on(&server, "true"), 0);
    audited.stop();
    let verified = with_status(0, audited.verify(&["--json"]));
    let verdict: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!(verdict["unfinished"], 1, "{verdict}");
    assert!(
        verdict["notes"][0].as_str().unwrap().contains("incomplete"),
        "{verdict}"
    );
}

#[test]
fn what_is_changed_or_removed_is_found() {
    let (server, audited) = (server(), Audited::new("audit = \"on\"\naudit_file_size = 2000\n"));
    for number in 0..4 {
        assert_status(&audited.home.run_on(&server, &format!("echo {number}")), 0);
    }
    audited.stop();
    let intact = with_status(0, audited.verify(&[]));
    let words = text(&intact.stdout);
    assert!(!words.contains("in 1 files"), "{words}");
    let head = words.lines().last().unwrap().split(' ').nth(2).unwrap();
    assert_status(&audited.verify(&["--head", head]), 0);

    let oldest = fs::read_dir(audited.directory())
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let oldest = oldest
        .filter(|path| path.extension().is_some())
        .min_by_key(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name == "audit.jsonl", name)
        });
    let oldest = oldest.unwrap();
    let whole = fs::read_to_string(&oldest).unwrap();
    fs::write(&oldest, whole.replacen("echo 0", "echo X", 1)).unwrap();
    let changed = with_status(1, audited.verify(&[]));
    assert!(text(&changed.stdout).contains("WRONG: "), "{changed:?}");
    let without: Vec<_> = whole.lines().enumerate().filter(|(at, _)| *at != 1).collect();
    let without: String = without.iter().map(|(_, line)| format!("{line}\n")).collect();
    fs::write(&oldest, without).unwrap();
    assert!(text(&audited.verify(&[]).stdout).contains("record 2 is missing"));
    fs::write(&oldest, &whole).unwrap();
    assert_status(&audited.verify(&[]), 0);

    fs::remove_file(audited.file()).unwrap();
    assert!(text(&audited.verify(&[]).stdout).contains("the end is missing"));
    fs::remove_file(audited.directory().join("head")).unwrap();
    assert_status(&audited.verify(&[]), 0);
    assert_status(&audited.verify(&["--head", head]), 1);
}

/// A trail on a full disk, which only the commands of `script` see; `$F` is the server's configuration and `$T` trunkline.
fn on_a_small_disk(audited: &Audited, server: &trunkline_testkit::Sshd, script: &str) -> Output {
    fs::create_dir_all(audited.directory()).unwrap();
    for directory in [audited.home.trunkline_dir().join("state"), audited.directory()] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let user = if rustix::process::geteuid().is_root() {
        ""
    } else {
        "-r"
    };
    let script = format!(
        "exec unshare -m {user} bash -c 'mount -t tmpfs -o size=64k,mode=0700 tmpfs $D || exit 99\n{script}'"
    );
    let mut shell = audited.home.shell(server, &script);
    finish(shell.env("D", audited.directory()).env("H", server.alias()))
}

#[test]
fn on_a_full_disk_nothing_runs_in_the_mode_strict_and_it_resumes() {
    let (server, audited) = (server(), Audited::new("audit = \"strict\"\n"));
    let ran = audited.home.path("ran");
    let script = format!(
        "$T ssh -F $F $H true || exit 98\n\
         cat /dev/zero >$D/filler 2>/dev/null\n\
         refused=\n\
         for n in 1 2 3 4 5 6 7 8 9; do\n\
           rm -f {ran}\n\
           $T ssh -F $F $H touch {ran} && continue\n\
           test -e {ran} && exit 96\n\
           refused=1; break\n\
         done\n\
         test $refused || exit 97\n\
         rm $D/filler; $T ssh -F $F $H touch {ran} || exit 95\n\
         $T stop; $T audit verify",
        ran = ran.display()
    );
    let output = with_status(0, on_a_small_disk(&audited, &server, &script));
    assert_says(&output, "nothing was run, because it cannot be recorded in");
    assert_says(&output, "No space left on device");
    assert!(text(&output.stdout).contains("intact: "), "{output:?}");
    assert!(ran.exists());
}

#[test]
fn on_a_full_disk_commands_run_in_the_mode_on_and_the_records_follow() {
    let (server, audited) = (server(), Audited::new("audit = \"on\"\n"));
    // What is left of a page takes some records all the same.
    let script = "$T ssh -F $F $H true || exit 98\n\
                  cat /dev/zero >$D/filler 2>/dev/null\n\
                  for n in 1 2 3 4 5 6 7 8 9; do $T ssh -F $F $H true unrecorded || exit 97; done\n\
                  rm $D/filler; $T ssh -F $F $H true || exit 95\n\
                  $T stop; grep -c unrecorded $D/audit.jsonl; $T audit verify";
    let output = with_status(0, on_a_small_disk(&audited, &server, script));
    let said = text(&output.stdout);
    assert!(
        said.lines().any(|line| line == "18"),
        "each has a beginning and an end: {said}"
    );
    assert!(said.contains("intact: "), "{said}");
    assert!(
        audited.home.log().contains("the audit trail cannot be written"),
        "{}",
        audited.home.log()
    );
}

#[test]
fn a_daemon_that_cannot_write_a_strict_trail_refuses_everything_until_it_can() {
    let (server, audited) = (server(), Audited::new("audit = \"strict\"\n"));
    fs::create_dir_all(audited.file()).unwrap();
    for directory in [audited.home.trunkline_dir().join("state"), audited.directory()] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let refused = with_status(255, audited.home.run_on(&server, "true"));
    let said = text(&refused.stderr);
    assert!(said.contains("cannot be recorded"), "{refused:?}");
    assert_eq!(said.matches("Is a directory").count(), 1, "{said}");
    fs::remove_dir(audited.file()).unwrap();
    assert_status(&audited.home.run_on(&server, "true"), 0);
    audited.stop();
    assert_eq!(audited.find_records(&[("event", "begin")]).len(), 1);
    assert_status(&audited.verify(&[]), 0);
}

#[test]
fn what_a_stock_ssh_asks_for_is_refused_however_often_it_is_tried() {
    let audited = Audited::new("audit = \"strict\"\nbusy_above = 1_000_000_000_000\n");
    let (directory, file) = (audited.directory(), audited.file());
    fs::create_dir_all(&file).unwrap();
    for directory in [audited.home.trunkline_dir().join("state"), directory] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let (ran, server) = (audited.home.path("ran"), server());
    let config = server.ssh_config();
    // The daemon is new, too: a client that found none would connect by itself.
    let stock = Stock::in_home(audited.home, server, config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let mut touch = stock.ssh();
    touch
        .arg(stock.server.alias())
        .arg(format!("touch {}", ran.display()));
    let mut tunnel = stock.ssh();
    tunnel.args(["-W", &target, stock.server.alias()]);
    for client in [&mut touch, &mut tunnel] {
        for _ in 0..2 {
            let refused = fail(255, client);
            assert_says(&refused, "cannot be recorded");
        }
    }
    assert!(!ran.exists());
    let reached = listener.accept().unwrap_err();
    assert_eq!(reached.kind(), std::io::ErrorKind::WouldBlock);
    stock.assert_logins(1);
}

#[test]
fn each_connection_through_a_forwarding_is_recorded() {
    let (server, audited) = (server(), Audited::new("audit = \"on\"\n"));
    let Forwarded { mut ssh, target, .. } = audited.send_five_bytes(&server, "-L");
    let to = target.local_addr().unwrap().to_string();
    let end = &audited.find_records(&[("event", "end"), ("kind", "tunnel"), ("command", &to)])[0];
    assert_eq!(
        (&end["sent_bytes"], &end["execution"]),
        (&5.into(), &"finished".into()),
        "{end}"
    );
    drop(ssh.stdin.take());
    ssh.wait().unwrap();
}

#[test]
fn each_connection_through_a_remote_forwarding_is_recorded() {
    let (server, audited) = (server(), Audited::new("audit = \"strict\"\n"));
    let Forwarded {
        mut ssh,
        target,
        socket,
    } = audited.send_five_bytes(&server, "-R");
    let to = target.local_addr().unwrap().to_string();
    let incoming = [("kind", "incoming"), ("command", to.as_str())];
    let end = &audited.find_records(&[incoming[0], incoming[1], ("event", "end")])[0];
    assert_eq!(
        (&end["received_bytes"], &end["execution"]),
        (&5.into(), &"finished".into()),
        "{end}"
    );
    assert_eq!(end["host"], server.alias());

    // Nobody listens there any more.
    drop(target);
    let mut client = UnixStream::connect(&socket).unwrap();
    let mut nothing = Vec::new();
    // sshd closes what was refused, or resets it.
    let _ = client.read_to_end(&mut nothing);
    wait_until("the refused connection is recorded", || {
        let ends = audited.find_records(&[incoming[0], incoming[1], ("event", "end")]);
        ends.iter()
            .any(|end| end["execution"] == "did not start" && end["error"].is_string())
    });
    drop(ssh.stdin.take());
    ssh.wait().unwrap();
}
