//! Sessions on a terminal.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use rustix::process::{Signal, kill_process};
use trunkline_testkit::Sshd;

use crate::home::{Home, program, server, wait_until};
use crate::mux::forwards::echo;
use crate::tty::Terminal;

/// A login shell on the server, with a prompt of its own.
fn login(home: &Home, server: &Sshd) -> Terminal {
    let mut terminal = Terminal::start(home.ssh(server).arg(server.alias()));
    // In two parts, so that the echo of what is typed is not taken for the prompt.
    terminal.send("PS1='pro''mpt> '; bind 'set enable-bracketed-paste off'\n");
    terminal.expect("prompt> ");
    terminal
}

/// Local bash with job control, in which the client is a job.
fn shell(home: &Home, server: &Sshd) -> Terminal {
    let mut command = home.command("bash");
    command
        .args(["--norc", "--noprofile", "-i"])
        .env("PS1", "local> ");
    command.env("T", program()).env("F", server.ssh_config());
    let mut terminal = Terminal::start(&command);
    terminal.answer("local> ", "bind 'set enable-bracketed-paste off'\n");
    terminal.expect("local> ");
    terminal
}

#[test]
fn a_login_shell_has_the_terminal_and_gives_it_back() {
    let (server, home) = (server(), Home::new());
    let mut terminal = Terminal::start(home.ssh(&server).arg(server.alias()));
    let before = terminal.modes();
    terminal.send("PS1='pro''mpt> '\n");
    terminal.expect("prompt> ");
    assert!(
        !terminal.modes().is_cooked(),
        "the server's terminal does the editing"
    );
    terminal.send("echo $TERM; stty size; tty\n");
    terminal.answer("xterm\r\n24 80\r\n/dev/pts/", "exit 5\n");
    assert_eq!(terminal.end().code(), Some(5));
    assert_eq!(terminal.modes(), before);
    terminal.expect("Connection to 127.0.0.1 closed.");
}

/// The output that is under way when it is pressed is shown, and that is bounded by the channel's window.
#[test]
fn much_output_on_a_slow_terminal_does_not_hold_up_an_interrupt() {
    let (server, home) = (server(), Home::new());
    let mut command = home.ssh(&server);
    command.args(["-t", server.alias(), "trap 'exit 7' INT; yes"]);
    let mut terminal = Terminal::start(&command);
    terminal.becomes_slow();
    wait_until("all that can be under way is", || terminal.text().len() > 1 << 20);
    let before = terminal.text().len();
    terminal.send("\x03");
    assert_eq!(terminal.end().code(), Some(7));
    let behind = terminal.text().len() - before;
    assert!(behind < 8 << 20, "{behind} bytes came after it");
}

#[test]
fn a_refused_terminal_ends_it_with_the_words_and_the_status_of_ssh() {
    let server = Sshd::builder().config("PermitTTY no").start().unwrap();
    let home = Home::new();
    for mut ssh in [server.ssh(), home.ssh(&server)] {
        let mut terminal = Terminal::start(ssh.args(["-tt", server.alias(), "sleep 60"]));
        let cooked = terminal.modes();
        terminal.expect("PTY allocation request failed on channel 0");
        assert_eq!(terminal.end().code(), Some(255));
        assert_eq!(terminal.modes(), cooked);
    }
}

#[test]
fn a_new_window_size_reaches_the_server() {
    let (server, home) = (server(), Home::new());
    let mut terminal = login(&home, &server);
    terminal.send("trap 'stty size' WINCH; echo re''ady\n");
    terminal.expect("ready\r\n");
    terminal.resize(131, 43);
    // Bash runs the trap when the line that it reads is done.
    terminal.send("while [ \"$(stty size)\" != '43 131' ]; do :; done; echo si''zed\n");
    terminal.expect("sized\r\n");
}

#[test]
fn keys_that_make_signals_make_them_on_the_server() {
    let (server, home) = (server(), Home::new());
    let mut terminal = login(&home, &server);
    terminal.send("echo wai''ting; cat; echo st''atus $?\n");
    terminal.expect("waiting\r\n");
    // A signal between the shell's fork and the start of the program is lost: let it show that it reads.
    terminal.send("ping\n");
    terminal.answer("ping\r\nping\r\n", "\x03");
    terminal.answer("prompt> ", "echo alive $?\n");
    terminal.expect("alive 130\r\n");
    // A shell that is not reading yet has its terminal in another mode, in which ^D is not what it is in this one.
    terminal.answer("prompt> ", "\x04");
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn the_escape_character_disconnects_and_helps() {
    let (server, home) = (server(), Home::new());
    let mut terminal = login(&home, &server);
    let before = Terminal::start(&home.command("true")).modes();
    terminal.send("\r~?");
    terminal.answer("~.   - terminate session\r\n", "\recho a~.b\n");
    terminal.answer("a~.b\r\n", "\r~.");
    assert_eq!(terminal.end().code(), Some(255));
    assert_eq!(terminal.modes(), before);
    wait_until("the session is gone", || home.sessions() == 0);
}

#[test]
fn what_escapes_show_is_what_ssh_shows() {
    let (server, home) = (server(), Home::new());
    let mut stock = home.command("ssh");
    stock.arg("-F").arg(server.ssh_config());
    let helps = [home.ssh(&server), stock].map(|mut ssh| {
        let mut terminal = Terminal::start(ssh.args(["-t", server.alias(), "echo ready; cat"]));
        terminal.expect("ready");
        for (typed, shown) in [
            ("~C", "commandline disabled\r\n"),
            ("~#", "The following connections are open:\r\n"),
            (
                "~?",
                "escapes are only recognized immediately after newline.)\r\n",
            ),
        ] {
            terminal.send(typed);
            terminal.expect(shown);
        }
        let shown = terminal.text();
        terminal.send("~.");
        assert_eq!(terminal.end().code(), Some(255));
        // A session of ours ends alone, as one on an ssh's shared connection does.
        let help = shown[shown.find("Supported").unwrap()..].lines();
        let help = help.map(|line| line.replace("connection (and any multiplexed sessions)", "session"));
        help.collect::<Vec<_>>()
    });
    let [ours, theirs] = helps;
    assert!(ours.len() > 8, "{ours:?}");
    for line in ours {
        assert!(theirs.contains(&line), "{line:?} in {theirs:?}");
    }
}

/// Sends a line to whoever listens at a path, and gives back the line that is answered.
fn ask(stream: &mut UnixStream, line: &str) -> String {
    stream.write_all(line.as_bytes()).unwrap();
    let mut answer = vec![0; line.len()];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

/// A session with a forwarding that its user has asked for at the command line, from the path to the port.
fn forwarding(home: &Home, server: &Sshd, path: &Path, port: u16) -> Terminal {
    let mut command = home.ssh(server);
    command.args(["-o", "EnableEscapeCommandline=yes", server.alias()]);
    let mut terminal = Terminal::start(&command);
    terminal.send("PS1='pro''mpt> '; bind 'set enable-bracketed-paste off'\n");
    terminal.answer("prompt> ", "\r");
    terminal.answer("prompt> ", "~C");
    terminal.answer("ssh> ", &format!("-L {}:127.0.0.1:{port}\n", path.display()));
    terminal.expect("Forwarding port.");
    terminal
}

#[test]
fn the_command_line_opens_lists_and_ends_forwardings() {
    let (server, home, port) = (server(), Home::new(), echo());
    let path = home.path("forward");
    let mut terminal = forwarding(&home, &server, &path, port);
    let mut stream = UnixStream::connect(&path).unwrap();
    assert_eq!(ask(&mut stream, "through\n"), "through\n");
    terminal.send("\r~#");
    terminal.expect("The following connections are open:");
    let target = format!("-L {} to 127.0.0.1:{port}: 1 open now", path.display());
    terminal.expect(&target);
    for (line, answer) in [
        ("-L nonsense", "Bad local forwarding specification"),
        ("-KL 1", "Unknown port forwarding."),
        ("what", "Invalid command."),
        ("?", "-KD[bind_address:]port"),
        (&format!("-KL {}", path.display()), "Canceled forwarding."),
    ] {
        terminal.send("\r~C");
        terminal.answer("ssh> ", &format!("{line}\n"));
        terminal.expect(answer);
    }
    assert!(UnixStream::connect(&path).is_err());
    assert_eq!(
        ask(&mut stream, "what is carried goes on\n"),
        "what is carried goes on\n"
    );
    terminal.send("exit 3\n");
    assert_eq!(terminal.end().code(), Some(3));
}

#[test]
fn keys_that_end_a_line_or_a_local_command_leave_the_session() {
    let (server, home) = (server(), Home::new());
    for options in [&[][..], &["--no-daemon"]] {
        let mut command = home.command(program());
        command.args(options).args(["ssh", "-F"]).arg(server.ssh_config());
        command.args([
            "-o",
            "EnableEscapeCommandline=yes",
            "-o",
            "PermitLocalCommand=yes",
        ]);
        let mut terminal = Terminal::start(command.arg(server.alias()));
        terminal.send("PS1='pro''mpt> '; bind 'set enable-bracketed-paste off'\n");
        terminal.expect("prompt> ");
        let mut line = |typed: &[(&str, &str)]| {
            terminal.send("\r");
            terminal.answer("prompt> ", "~C");
            terminal.expect("ssh> ");
            for (keys, shown) in typed {
                terminal.send(keys);
                if !shown.is_empty() {
                    terminal.expect(shown);
                }
            }
            wait_until("raw mode", || !terminal.modes().is_cooked());
            terminal.send("echo al''ive\r");
            terminal.expect("alive\r\n");
            terminal.expect("prompt> ");
        };
        for _ in 0..10 {
            line(&[("-L 1", "-L 1"), ("\x03", "^C")]);
        }
        line(&[("\x04", "")]);
        // The local command alone reads what is typed while it runs. Interrupted is what has shown that it runs: a child that the
        // shell has just made can miss a signal.
        let mut typed = vec![("!echo be''gun; cat; echo en''ded; exec cat\n", "begun\r\n")];
        typed.extend([("one\n", "one\r\none\r\n"), ("two\n", "two\r\ntwo\r\n")]);
        typed.extend([
            ("\x04", "ended\r\n"),
            ("three\n", "three\r\nthree\r\n"),
            ("\x03", "^C"),
        ]);
        line(&typed);
        kill_process(terminal.pid(), Signal::INT).unwrap();
        assert_eq!(terminal.end().signal(), Some(Signal::INT.as_raw()));
        assert!(terminal.modes().is_cooked());
    }
}

#[test]
fn a_session_in_the_background_ends_while_what_it_forwards_goes_on() {
    let (server, home, port) = (server(), Home::new(), echo());
    let path = home.path("forward");
    let mut terminal = forwarding(&home, &server, &path, port);
    let before = Terminal::start(&home.command("true")).modes();
    let mut stream = UnixStream::connect(&path).unwrap();
    assert_eq!(ask(&mut stream, "before\n"), "before\n");
    // A shell that is not reading yet has its terminal in another mode, in which ^D is not what it is in this one.
    terminal.send("\r");
    terminal.answer("prompt> ", "~&");
    assert_eq!(terminal.end().code(), Some(0));
    assert_eq!(terminal.modes(), before);
    // The login shell has been sent an end of file.
    wait_until("the session is gone", || home.sessions() == 0);
    assert!(UnixStream::connect(&path).is_err());
    assert_eq!(ask(&mut stream, "afterwards\n"), "afterwards\n");
}

#[test]
fn the_command_line_is_off_unless_the_configuration_says_otherwise() {
    let (server, home) = (server(), Home::new());
    let mut terminal = login(&home, &server);
    terminal.send("\r~C");
    terminal.expect("commandline disabled");
}

#[test]
fn without_an_escape_character_everything_reaches_the_server() {
    let (server, home) = (server(), Home::new());
    let mut terminal =
        Terminal::start(
            home.ssh(&server)
                .args(["-e", "none", "-t", server.alias(), "head -n 1"]),
        );
    // Until the far end has said something, this end's terminal may still echo.
    wait_until("raw mode", || !terminal.modes().is_cooked());
    terminal.send("~.\n");
    assert_eq!(terminal.end().code(), Some(0));
    // Once by the terminal over there, once by the command.
    terminal.expect("~.\r\n");
    terminal.expect("~.\r\n");
}

#[test]
fn a_suspended_client_lets_go_of_the_terminal_and_takes_it_again() {
    let (server, home) = (server(), Home::new());
    let mut terminal = shell(&home, &server);
    let before = terminal.modes();
    terminal.send("\"$T\" ssh -F \"$F\" testbed\n");
    terminal.send("PS1='pro''mpt> '\n");
    terminal.expect("prompt> ");
    let during = terminal.modes();
    terminal.send("\r~\x1a");
    terminal.expect("Stopped");
    terminal.answer("local> ", "stty -a | grep -o ' icanon'\n");
    terminal.expect("\n icanon");
    terminal.answer("local> ", "fg\n");
    wait_until("raw mode", || terminal.modes() == during);
    terminal.send("echo st''ill here\n");
    terminal.answer("still here\r\n", "exit 3\n");
    terminal.answer("local> ", "echo code $?\n");
    terminal.expect("code 3\r\n");
    terminal.expect("local> ");
    wait_until("the shell's modes", || terminal.modes() == before);
}

#[test]
fn a_client_that_is_told_to_end_restores_the_terminal_first() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let (server, home) = (server(), Home::new());
        let before = Terminal::start(&home.command("true")).modes();
        let mut terminal = login(&home, &server);
        kill_process(terminal.pid(), signal).unwrap();
        terminal.end();
        assert_eq!(terminal.modes(), before, "{signal:?}");
        wait_until("the session is gone", || home.sessions() == 0);
    }
}

#[test]
fn when_the_daemon_dies_the_terminal_is_restored_and_the_user_told() {
    let (server, home) = (server(), Home::new());
    let before = Terminal::start(&home.command("true")).modes();
    let mut terminal = login(&home, &server);
    kill_process(home.daemon().unwrap(), Signal::KILL).unwrap();
    assert_eq!(terminal.end().code(), Some(255));
    // On a line of its own, wherever the other side's ended.
    terminal.expect("\ntrunkline: the daemon ended, and this session with it");
    assert_eq!(terminal.modes(), before);
}

#[test]
fn a_terminal_for_a_command_carries_its_output_and_status() {
    let (server, home) = (server(), Home::new());
    let mut terminal = Terminal::start(
        home.ssh(&server)
            .args(["-t", server.alias(), "stty size; exit 6"]),
    );
    assert_eq!(terminal.end().code(), Some(6));
    terminal.expect("24 80\r\n");
    // A command gets none unless asked for; its output is then this terminal's to format.
    let mut terminal = Terminal::start(home.ssh(&server).args([server.alias(), "test -t 0 || echo none"]));
    assert_eq!(terminal.end().code(), Some(0));
    terminal.expect("none\r\n");
}
