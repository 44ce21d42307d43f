//! Keys that are shown before their echo.

use std::process::Command;

use crate::home::{Home, server};
use crate::tty::Terminal;

/// Echoes as many keys as are given, and swallows all others until one of them is `.`.
fn echoes(keys: usize) -> String {
    format!(
        "stty raw -echo; echo rea''dy; dd bs=1 count={keys} 2>/dev/null; \
         while k=$(dd bs=1 count=1 2>/dev/null); [ \"$k\" != . ]; do :; done; printf 'en''d'"
    )
}

fn ssh(home: &Home, server: &trunkline_testkit::Sshd, keys: usize) -> Command {
    let mut command = home.ssh(server);
    command.env("TERM", "xterm-256color");
    command.args(["-t", server.alias(), &echoes(keys)]);
    command
}

#[test]
fn a_key_is_shown_before_its_echo_once_there_were_some() {
    let (server, home) = (server(), Home::new());
    home.settings("predict = \"always\"\n");
    let mut terminal = Terminal::start(&ssh(&home, &server, 8));
    terminal.expect("ready");
    // One proves it, unless this machine is so busy that it comes much sooner than answers did before, or very late.
    for _ in 0..8 {
        terminal.send("a");
        terminal.expect("a");
    }
    // The command swallows this one: who shows it is the client, and who takes it back, too.
    terminal.send("b");
    terminal.expect("b");
    terminal.answer("\x08\x1b[K", ".");
    terminal.expect("end");
    terminal.end();
}

#[test]
fn nothing_is_shown_that_was_never_echoed() {
    let (server, home) = (server(), Home::new());
    home.settings("predict = \"always\"\n");
    let mut terminal = Terminal::start(&ssh(&home, &server, 0));
    terminal.answer("ready", "secret");
    terminal.send(".");
    let shown = terminal.expect("end");
    assert_eq!(shown.trim(), "");
    terminal.end();
}

#[test]
fn a_host_and_a_terminal_can_be_left_out() {
    let (server, home) = (server(), Home::new());
    home.settings(&format!(
        "predict = \"always\"\npredict_never_hosts = [\"{}\"]\n",
        server.alias()
    ));
    let mut never = ssh(&home, &server, 1);
    never.env("TERM", "xterm-256color");
    let other = Home::new();
    other.settings("predict = \"always\"\n");
    let mut dumb = ssh(&other, &server, 1);
    dumb.env("TERM", "dumb");
    for command in [never, dumb] {
        let mut terminal = Terminal::start(&command);
        terminal.answer("ready", "a");
        terminal.answer("a", "xyz.");
        terminal.expect("end");
        terminal.end();
        let shown = terminal.text();
        assert!(!shown.contains('x') && !shown.contains('\x08'), "{shown:?}");
    }
}
