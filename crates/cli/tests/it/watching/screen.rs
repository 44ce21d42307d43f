//! The screens on which something is watched: of tmux, and a page that is served.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use crate::home::{Home, finish, text, wait_until_or};

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

/// A page that is served.
pub(crate) struct Page {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Page {
    pub(crate) fn serve(home: &Home) -> Self {
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

    pub(crate) fn port(&self) -> u16 {
        self.url
            .split([':', '/'])
            .find_map(|word| word.parse().ok())
            .unwrap()
    }

    pub(crate) fn path(&self) -> &str {
        let (_, behind) = self.url.split_once("//").unwrap();
        &behind[behind.find('/').unwrap()..]
    }

    /// The answer to a request with these headers, head and body.
    pub(crate) fn ask(&self, path: &str, headers: &str) -> String {
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
