//! Stock ssh on a pseudo-terminal: the client makes it raw and sleeps, the daemon reads and writes it.

use std::time::{Duration, Instant};

use trunkline_testkit::free_port;

use super::stock::Stock;
use crate::home::{
    assert_prints, assert_says, assert_status, finish_with, server, sshd, text, wait_until, with_status,
};
use crate::tty::Terminal;

#[test]
fn a_login_has_the_terminals_type_size_and_modes_and_gives_it_back() {
    let stock = Stock::new(server());
    stock.warm();
    let before = Terminal::start(&stock.home.command("true")).modes();
    let mut terminal = Terminal::start(stock.ssh().arg(stock.server.alias()));
    terminal.send("PS1='pro''mpt> '\n");
    terminal.answer(
        "prompt> ",
        "echo [$TERM $(stty size) $(stty -a | grep -o 'intr = ^C')]\n",
    );
    terminal.answer("[xterm 24 80 intr = ^C]", "exit 3\n");
    assert_eq!(terminal.end().code(), Some(3));
    assert_eq!(terminal.modes(), before);
    stock.assert_logins(1);
}

#[test]
fn the_command_learns_of_every_new_size() {
    let stock = Stock::new(server());
    let mut terminal = Terminal::start(stock.ssh().args([
        "-t",
        stock.server.alias(),
        // The terminal is asked, since bash forgets a SIGWINCH that comes while its trap for it runs. Without a trap of its
        // own, SIGINT ends the loop only if it ends the command that runs in it, too.
        "trap exit INT; while :; do stty size; sleep 0.01; done",
    ]));
    terminal.expect("24 80");
    // The client begins to pass the signal on a moment after the command has begun. Asked too often, it does nothing else.
    let (mut rows, mut next) = (30, Instant::now());
    wait_until("the client passes sizes on", || {
        if next <= Instant::now() {
            rows += 1;
            terminal.resize(91, rows);
            next += Duration::from_millis(50);
        }
        terminal.text().contains(" 91")
    });
    for (columns, rows) in [(132, 50), (40, 10), (80, 24)] {
        terminal.resize(columns, rows);
        terminal.expect(&format!("{rows} {columns}"));
    }
    terminal.send("\x03");
    terminal.end();
}

#[test]
fn escape_sequences_are_obeyed_or_explained() {
    let stock = Stock::new(server());
    let mut terminal = Terminal::start(stock.ssh().args(["-t", stock.server.alias(), "echo ready; cat"]));
    terminal.answer("ready", "\r~?");
    terminal.expect("~.   - terminate session");
    let port = free_port();
    let forward = format!("{port}:127.0.0.1:9");
    assert_status(&stock.control(&["forward", "-L", &forward]), 0);
    terminal.send("~#");
    terminal.expect("The following connections are open:");
    terminal.answer(&format!("{port} to 127.0.0.1:9: 0 open now, 0 so far"), "~\x1a");
    terminal.answer("~^Z escape not available to multiplexed sessions", "~~x\r");
    terminal.answer("~x", "~.");
    assert_eq!(terminal.end().code(), Some(255));
    assert!(!terminal.text().contains("trunkline:"), "{}", terminal.text());
    wait_until("the session is gone", || stock.home.sessions() == 0);
}

#[test]
fn escapes_are_obeyed_in_input_from_a_pipe_if_the_session_has_a_terminal() {
    let stock = Stock::new(server());
    let alias = stock.server.alias();
    let listed = with_status(
        0,
        finish_with(
            stock.ssh().args(["-tt", alias, "read line; echo got $line"]),
            b"~#x\n",
        ),
    );
    assert_says(&listed, "none is forwarded");
    assert_prints(&listed, "got x");
    let ended = finish_with(stock.ssh().args(["-tt", alias, "sleep 1000"]), b"~.");
    assert_status(&ended, 255);
    let plain = finish_with(
        stock
            .ssh()
            .args(["-tt", "-e", "none", alias, "read line; echo got $line"]),
        b"~#x\n",
    );
    assert_prints(&plain, "got ~#x");
    let piped = finish_with(stock.ssh().args([alias, "cat"]), b"~.\n");
    assert_eq!(text(&piped.stdout), "~.\n");
}

#[test]
fn without_a_terminal_on_the_server_the_client_leaves_raw_mode_and_the_command_runs() {
    let stock = Stock::new(sshd().config("PermitTTY no").start().unwrap());
    let mut terminal = Terminal::start(stock.ssh().args([
        "-t",
        stock.server.alias(),
        "test -t 0 || echo none; read line; echo got $line",
    ]));
    let cooked = terminal.modes();
    // The client's words and the command's are in any order.
    wait_until("both are told", || {
        let shown = terminal.text();
        shown.contains("PTY allocation request failed") && shown.contains("none")
    });
    wait_until("the terminal is as it was", || terminal.modes() == cooked);
    terminal.send("typed\n");
    terminal.expect("got typed");
    assert_eq!(terminal.end().code(), Some(0));
    stock.assert_logins(1);
}

#[test]
fn what_is_typed_after_the_session_is_for_the_next_program() {
    let stock = Stock::new(server());
    let script = format!(
        "ssh -F '{}' -o ControlMaster=no -o ControlPath='{}' -t {} 'echo remote'; echo local; read line; echo got $line",
        stock.config().display(),
        stock.socket.display(),
        stock.server.alias()
    );
    let mut terminal = Terminal::start(stock.home.command("bash").args(["-c", &script]));
    terminal.answer("local", "mine\n");
    terminal.expect("got mine");
    assert_eq!(terminal.end().code(), Some(0));
}
