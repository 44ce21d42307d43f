//! `trunkline top` and `trunkline serve-ui`: what they show is what goes on, and nothing is left of them.

mod browser;
mod screen;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::json;
use trunkline_testkit::Sshd;

use crate::home::{Home, end_of, finish, program, server, text, wait_until_or};
use crate::tty::Terminal;
use browser::Browser;
use screen::{Page, Tmux};

/// The sequence that gives the terminal its own screen back (xterm's 1049).
const OWN_SCREEN: &str = "\x1b[?1049l";

fn top(home: &Home) -> Terminal {
    let mut command = home.trunkline();
    command.args(["top", "--interval", "100ms"]);
    Terminal::start(&command)
}

/// A command that runs on the server for as long as this.
struct Sleeping(Child);

impl Sleeping {
    fn start_on(home: &Home, server: &Sshd) -> Self {
        let mut ssh = home.ssh(server);
        Self(ssh.args([server.alias(), "sleep 1000"]).spawn().unwrap())
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn top_gives_the_terminal_back_however_it_ends() {
    let home = Home::new();
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut top = top(&home);
        top.expect("Hosts");
        kill_process(top.pid(), signal).unwrap();
        assert_eq!(top.end().code(), Some(status));
        top.expect(OWN_SCREEN);
        assert!(top.modes().is_cooked(), "{signal:?}");
    }
    let mut top = top(&home);
    top.expect("Hosts");
    top.send("\x03");
    assert!(top.end().success());
    assert!(top.modes().is_cooked());
}

#[test]
fn top_closes_a_hosts_connections_after_a_yes_and_not_before() {
    let (home, server) = (Home::new(), server());
    assert!(home.run_on(&server, "true").status.success());
    let mut top = top(&home);
    top.expect(server.alias());
    top.send("cn");
    top.expect("nothing was closed");
    assert_eq!(home.ls().as_array().unwrap().len(), 1);
    top.send("cy");
    top.expect("closed 1 connection");
    wait_until_or("the connection is closed", || match home.ls().as_array() {
        Some(hosts) if hosts.is_empty() => Ok(()),
        hosts => Err(format!("{hosts:?}")),
    });
}

#[test]
fn top_needs_a_terminal() {
    let output = finish(Home::new().trunkline().arg("top"));
    assert_eq!(output.status.code(), Some(255));
    assert!(
        text(&output.stderr).contains("top needs a terminal"),
        "{output:?}"
    );
}

#[test]
fn top_waits_for_a_daemon_shows_it_and_says_when_it_has_ended() {
    let (home, server) = (Home::new(), server());
    let tmux = Tmux { home: &home };
    let line = format!("{} top --interval 100ms; echo ended $?; exec cat", program());
    tmux.run(&["new-session", "-d", "-x", "80", "-y", "24", &line]);
    tmux.expect("Waiting: the daemon is not running");
    let sleeping = Sleeping::start_on(&home, &server);
    tmux.expect(server.alias());
    tmux.run(&["send-keys", "2"]);
    tmux.expect("sleep 1000");
    finish(home.trunkline().args(["stop", "--now"]));
    tmux.expect("Waiting: the daemon");
    drop(sleeping);
    finish(home.ssh(&server).args([server.alias(), "true"]));
    tmux.run(&["send-keys", "1"]);
    tmux.expect("1 connection,");
    tmux.run(&["send-keys", "q"]);
    tmux.expect("ended 0");
}

#[test]
fn top_follows_the_size_of_a_window_of_tmux_and_leaves_it_as_it_was() {
    let (home, server) = (Home::new(), server());
    assert!(home.run_on(&server, "true").status.success());
    let tmux = Tmux { home: &home };
    let line = format!(
        "echo before; {} top --interval 100ms; echo ended $?; exec cat",
        program()
    );
    tmux.run(&["new-session", "-d", "-x", "80", "-y", "24", &line]);
    tmux.expect("q quit");
    tmux.expect(server.alias());
    let screen = tmux.run(&["capture-pane", "-p"]);
    assert!(
        !screen.contains("ADDRESS") && !screen.contains("before"),
        "{screen}"
    );
    tmux.run(&["resize-window", "-x", "200", "-y", "40"]);
    tmux.expect("ADDRESS");
    tmux.run(&["send-keys", "Enter"]);
    tmux.expect("algorithms");
    tmux.run(&["send-keys", "Escape"]);
    tmux.expect_no("algorithms");
    tmux.run(&["send-keys", "/", "no-such-host", "Enter"]);
    tmux.expect("Nothing has that in it");
    tmux.run(&["send-keys", "q"]);
    tmux.expect("ended 0");
    tmux.expect("before");
}

#[test]
fn the_page_is_for_those_who_have_its_address_and_for_no_other_site() {
    let home = Home::new();
    let mut page = Page::serve(&home);
    let (port, path) = (page.port(), page.path().to_owned());
    let here = format!("Host: 127.0.0.1:{port}\r\n");
    let answer = page.ask(&path, &here);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let head = answer.split("\r\n\r\n").next().unwrap().to_lowercase();
    assert!(
        head.contains("content-security-policy: default-src 'none'; script-src 'nonce-"),
        "{head}"
    );
    for (path, headers, status) in [
        ("/", &here, "404"),
        ("/00000000000000000000000000000000/", &here, "404"),
        ("/00000000000000000000000000000000/events", &here, "404"),
        (&*path, &format!("Host: evil.example:{port}\r\n"), "403"),
        (&*path, &format!("{here}Origin: http://evil.example\r\n"), "403"),
        (
            &*format!("{path}events"),
            &format!("{here}Sec-Fetch-Site: cross-site\r\n"),
            "403",
        ),
        (&*format!("{path}other"), &here, "404"),
    ] {
        let answer = page.ask(path, headers);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{path} {headers}: {answer}"
        );
        assert!(!answer.contains("<html"), "{answer}");
    }
    kill_process(rustix::process::Pid::from_child(&page.child), Signal::TERM).unwrap();
    assert_eq!(end_of(&mut page.child, "serve-ui").code(), Some(143));
}

#[test]
fn a_browser_shows_what_goes_on_and_names_as_text() {
    let (home, server) = (Home::new(), server());
    assert!(home.run_on(&server, "true").status.success());
    let evil = "<img src=x onerror=document.title='run'>";
    let mut ssh = home.ssh(&server);
    let mut running = Sleeping(
        ssh.args([server.alias(), &format!("echo begun; sleep 1000 # {evil}")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut begun = String::new();
    BufReader::new(running.0.stdout.take().unwrap())
        .read_line(&mut begun)
        .unwrap();
    for host in ["nowhere1", "nowhere2", "nowhere3", "nowhere4"] {
        let mut ssh = home.ssh(&server);
        ssh.args(["-o", "HostName=127.0.0.1", "-p", "1", host, "true"]);
        assert!(!ssh.output().unwrap().status.success());
    }
    let page = Page::serve(&home);
    let mut browser = Browser::open(&home, &page.url);
    let shown = browser.expect(evil);
    for wanted in [
        server.alias(),
        "connecting to 127.0.0.1 port 1: Connection refused",
        "nowhere4, nowhere3, nowhere2, … (4 hosts): it did not start",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    assert_eq!(shown.matches("Connection refused").count(), 1, "{shown}");
    assert_eq!(browser.value("document.images.length"), 0);
    assert_eq!(browser.value("document.title"), "trunkline");
    let from = "performance.getEntriesByType('resource').every(({ name }) => name.startsWith(location.href))";
    assert_eq!(browser.value(from), true);
    finish(home.trunkline().args(["stop", "--now"]));
    browser.expect("This page goes on when it can");
}

#[test]
fn the_page_fits_every_window_and_is_dark_where_the_user_wants_that() {
    let (home, server) = (Home::new(), server());
    let long = format!("echo {}", "x".repeat(300));
    let mut ssh = home.ssh(&server);
    let _running = Sleeping(
        ssh.args([server.alias(), &format!("sleep 1000; {long}")])
            .spawn()
            .unwrap(),
    );
    let page = Page::serve(&home);
    let mut browser = Browser::open(&home, &page.url);
    browser.expect(&long);
    for width in [390, 768, 1280, 2560] {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        browser.call("Emulation.setDeviceMetricsOverride", &size);
        let wide = browser.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= width, "{wide} on {width}");
    }
    let back = "getComputedStyle(document.documentElement).backgroundColor";
    let [light, dark] = ["light", "dark"].map(|wanted| {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": wanted }] });
        browser.call("Emulation.setEmulatedMedia", &media);
        browser.value(back)
    });
    assert_ne!(light, dark);
}
