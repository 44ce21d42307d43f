//! `trunkline top` and `trunkline serve-ui`: what they show is what goes on, and nothing is left of them.

pub(crate) mod browser;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::json;
use trunkline_testkit::Sshd;

use crate::home::{Home, end_of, finish, program, server, text, wait_until_or};
use crate::tty::Terminal;
use browser::Browser;

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
    assert!(home.on(&server, "true").status.success());
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

/// A tmux server of the test's own.
pub(crate) struct Tmux<'a> {
    pub(crate) home: &'a Home,
}

impl Tmux<'_> {
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let mut tmux = self.home.command("tmux");
        tmux.arg("-S")
            .arg(self.home.path("tmux"))
            .args(["-f", "/dev/null"]);
        tmux.env("LC_ALL", "C.UTF-8").args(arguments);
        let output = finish(&mut tmux);
        assert!(output.status.success(), "tmux is needed: {output:?}");
        text(&output.stdout)
    }

    pub(crate) fn expect(&self, wanted: &str) {
        wait_until_or(&format!("{wanted:?} is on the screen"), || {
            let screen = self.run(&["capture-pane", "-p"]);
            screen.contains(wanted).then_some(()).ok_or(screen)
        });
    }

    /// Before a key after Escape: read together, they are that key with Alt.
    pub(crate) fn expect_no(&self, unwanted: &str) {
        wait_until_or(&format!("{unwanted:?} is not on the screen"), || {
            let screen = self.run(&["capture-pane", "-p"]);
            (!screen.contains(unwanted)).then_some(()).ok_or(screen)
        });
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let _ = self
            .home
            .command("tmux")
            .arg("-S")
            .arg(self.home.path("tmux"))
            .arg("kill-server")
            .output();
    }
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
    assert!(home.on(&server, "true").status.success());
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

/// A page that is served.
pub(crate) struct Page {
    child: Child,
    pub(crate) url: String,
}

impl Page {
    fn serve(home: &Home) -> Self {
        Self::serve_with(home, &[])
    }

    /// With these options.
    pub(crate) fn serve_with(home: &Home, options: &[&str]) -> Self {
        let mut command = home.trunkline();
        command.args(["serve-ui", "--interval", "100ms"]).args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut url)
            .unwrap();
        Self {
            child,
            url: url.trim().to_owned(),
        }
    }

    fn port(&self) -> u16 {
        self.url
            .split([':', '/'])
            .find_map(|word| word.parse().ok())
            .unwrap()
    }

    fn path(&self) -> &str {
        let (_, behind) = self.url.split_once("//").unwrap();
        &behind[behind.find('/').unwrap()..]
    }

    /// The answer to a request with these headers, head and body.
    fn ask(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
    assert!(home.on(&server, "true").status.success());
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
