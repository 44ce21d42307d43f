//! Commands of the user's configuration can ask on the terminal of whoever runs trunkline, as it can under ssh.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use trunkline_testkit::{Sshd, write_ssh_config};

use crate::home::{Home, finish, server, succeed, text, wait_until};
use crate::tty::Terminal;

/// A server behind a script that asks for a code on the terminal.
struct Asking {
    home: Home,
    server: Sshd,
    config: PathBuf,
}

/// Passes on what it reads and what the server says.
const RELAY: &str = "exec 3<>/dev/tcp/127.0.0.1/$1; cat <&3 & cat >&3; kill $!";

impl Asking {
    fn new() -> Self {
        let (home, server) = (Home::new(), server());
        let ask = home.script(
            "ask",
            "#!/bin/bash\n\
             trap 'stty echo </dev/tty; exit 1' INT TERM\n\
             stty -echo </dev/tty || exit 1\n\
             printf 'Code for %s: ' \"$1\" >/dev/tty || exit 1\n\
             read -r code </dev/tty || exit 1\n\
             stty echo </dev/tty\n\
             printf '\\n' >/dev/tty\n\
             [ \"$code\" = 123456 ]\n",
        );
        let proxy = home.script(
            "proxy",
            &format!("#!/bin/bash\n{} \"$2\" || exit 1\n{RELAY}\n", ask.display()),
        );
        let port = server.port();
        let entry = |name: &str| {
            let proxy = format!("ProxyCommand {} {port} {name}", proxy.display());
            server.host_entry(name).with_line(&proxy)
        };
        let config = home.path("config");
        write_ssh_config(
            &config,
            [entry("box"), entry("other"), server.host_entry("plain")],
        )
        .unwrap();
        Self { home, server, config }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.home.trunkline();
        let (options, words) = words.split_at(words.iter().position(|word| !word.starts_with("--")).unwrap());
        command
            .args(options)
            .arg(words[0])
            .arg("-F")
            .arg(&self.config)
            .args(&words[1..]);
        command
    }

    fn at_terminal(&self, words: &[&str]) -> Terminal {
        Terminal::start(&self.command(words))
    }

    fn close(&self) {
        succeed(self.home.trunkline().args(["close", "--all", "--now"]));
    }
}

#[test]
fn a_proxy_command_asks_on_the_terminal_of_whoever_connects() {
    let asking = Asking::new();
    let (file, copy) = (asking.home.path("file"), asking.home.path("copy"));
    fs::write(&file, "content").unwrap();
    let (file, copy) = (file.to_str().unwrap(), format!("box:{}", copy.display()));
    for words in [
        &["ssh", "box", "echo ran"][..],
        &["run", "-H", "box", "--", "echo ran"],
        &["warm", "box"],
        &["cp", file, &copy],
        &["--no-daemon", "ssh", "box", "echo ran"],
        &["--no-daemon", "cp", file, &copy],
        &["ssh", "-J", "box", "plain", "echo ran"],
    ] {
        let mut terminal = asking.at_terminal(words);
        let modes = terminal.modes();
        terminal.answer("Code for box: ", "123456\n");
        assert_eq!(terminal.end().code(), Some(0), "{words:?}: {}", terminal.text());
        assert!(!terminal.text().contains("123456"), "{}", terminal.text());
        assert_eq!(terminal.modes(), modes);
        asking.close();
    }
}

#[test]
fn proxy_commands_of_several_hosts_ask_one_after_the_other() {
    let asking = Asking::new();
    let mut terminal = asking.at_terminal(&["run", "-H", "box,other", "--", "echo ran"]);
    for _ in 0..2 {
        terminal.answer("Code for ", "123456\n");
    }
    assert_eq!(terminal.end().code(), Some(0), "{}", terminal.text());
}

#[test]
fn a_connection_stays_whatever_becomes_of_who_answered() {
    let asking = Asking::new();
    let mut terminal = asking.at_terminal(&["ssh", "-tt", "box", "echo began; cat"]);
    terminal.answer("Code for box: ", "123456\n");
    terminal.expect("began");
    // The terminal goes away: whatever it has in its foreground is told so.
    drop(terminal);
    wait_until("the session is over", || asking.home.sessions() == 0);
    let ran = finish(&mut asking.command(&["ssh", "box", "echo ran"]));
    assert_eq!(text(&ran.stdout), "ran\n", "{ran:?}");
    assert_eq!(asking.server.authentications(), 1);
}

#[test]
fn an_interrupted_question_ends_the_command_and_nothing_else() {
    let asking = Asking::new();
    let mut terminal = asking.at_terminal(&["run", "-H", "box", "--", "echo ran"]);
    let modes = terminal.modes();
    terminal.answer("Code for box: ", "\x03");
    assert_ne!(terminal.end().code(), Some(0), "{}", terminal.text());
    assert_eq!(terminal.modes(), modes);
    assert!(!terminal.text().contains("ran"), "{}", terminal.text());
}

#[test]
fn a_match_exec_asks_whoever_it_decides_for() {
    let asking = Asking::new();
    let script = asking.home.path("ask");
    let chosen = server();
    let text_of = fs::read_to_string(&asking.config).unwrap();
    let entry = chosen.host_entry("plain").to_string();
    let (_, lines) = entry.split_once('\n').unwrap();
    let block = format!(
        "Match originalhost plain exec \"{} which\"\n{lines}\n",
        script.display()
    );
    fs::write(&asking.config, format!("{block}{text_of}")).unwrap();
    let port = ["ssh", "plain", "echo $SSH_CONNECTION | cut -d' ' -f4"];
    for (code, expected) in [("123456", &chosen), ("no", &asking.server), ("123456", &chosen)] {
        let mut terminal = asking.at_terminal(&port);
        terminal.answer("Code for which: ", &format!("{code}\n"));
        terminal.expect(&expected.port().to_string());
        assert_eq!(terminal.end().code(), Some(0), "{}", terminal.text());
        assert_eq!(
            terminal.text().matches("Code for").count(),
            1,
            "{}",
            terminal.text()
        );
    }
}
