//! The prompt for many hosts.

use std::fs;

use super::Fleet;
use crate::home::{assert_says, fail};
use crate::tty::Terminal;

#[test]
fn a_line_goes_to_all_hosts_that_are_chosen() {
    let fleet = Fleet::with_hosts(3);
    let mut terminal = Terminal::start(&fleet.command(&["-H", "box[1-3]"]));
    terminal.answer("box[1-3]> ", "echo one-{n}\r");
    let printed = terminal.expect("3 succeeded");
    for n in 1..=3 {
        assert!(printed.contains(&format!("box{n}: one-{n}\r\n")), "{printed}");
    }
    terminal.answer("box[1-3]> ", ":only !box2\r");
    terminal.answer("box[1,3]> ", "test {host} = box3\r");
    terminal.expect("1 returned an error");
    terminal.answer("box[1,3]> ", ":failed\r");
    terminal.answer("box1> ", ":only bxo2\r");
    terminal.answer("none of the hosts is bxo2; did you mean box2?", ":all\r");
    terminal.answer("box[1-3]> ", "!echo on this $((1 + 1))\r");
    terminal.expect("on this 2");
    terminal.answer("box[1-3]> ", "\x04");
    assert_eq!(terminal.end().code(), Some(0));
    assert!(terminal.modes().is_cooked());
}

#[test]
fn ctrl_c_ends_the_line_and_not_the_prompt() {
    let fleet = Fleet::with_hosts(2);
    let mut terminal = Terminal::start(&fleet.command(&["-H", "box[1-2]"]));
    terminal.answer("box[1-2]> ", "echo begun; exec sleep 1000\r");
    terminal.expect("begun");
    terminal.expect("begun");
    // At once, the second time.
    terminal.send("\x03");
    terminal.send("\x03");
    terminal.expect("interrupted");
    terminal.expect("box[1-2]> ");
    // On an empty line it does nothing.
    terminal.send("\x03");
    terminal.answer("box[1-2]> ", "echo still-{n}\r");
    terminal.expect("still-");
    terminal.expect("2 succeeded");
    terminal.answer("box[1-2]> ", ":quit\r");
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn lines_are_remembered_but_for_those_that_begin_with_a_space() {
    let fleet = Fleet::with_hosts(1);
    let mut terminal = Terminal::start(&fleet.command(&["-H", "box1"]));
    terminal.answer("box1> ", " echo secret\r");
    terminal.expect("1 succeeded");
    terminal.answer("box1> ", "echo remembered\r");
    terminal.expect("1 succeeded");
    terminal.answer("box1> ", "\x04");
    assert_eq!(terminal.end().code(), Some(0));
    let file = fleet.home.trunkline_dir().join("state/run.history");
    assert_eq!(fs::read_to_string(&file).unwrap(), "echo remembered\n");
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let mut terminal = Terminal::start(&fleet.command(&["-H", "box1"]));
    terminal.expect("box1> ");
    // Up.
    terminal.send("\x1b[A");
    terminal.answer("echo remembered", "\r");
    terminal.answer("1 succeeded", ":quit\r");
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn without_a_terminal_a_command_is_needed() {
    let fleet = Fleet::with_hosts(1);
    let output = fail(2, &mut fleet.command(&["-H", "box1"]));
    assert_says(&output, "a command is missing");
}

#[test]
fn a_signal_ends_the_prompt_and_leaves_the_terminal_as_it_was() {
    let fleet = Fleet::with_hosts(1);
    let mut terminal = Terminal::start(&fleet.command(&["-H", "box1"]));
    let before = terminal.modes();
    terminal.expect("box1> ");
    rustix::process::kill_process(terminal.pid(), rustix::process::Signal::TERM).unwrap();
    assert_eq!(terminal.end().code(), Some(143));
    assert_eq!(terminal.modes(), before);
}
