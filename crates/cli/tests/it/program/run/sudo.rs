//! `--become`: sudo, with and without a password.
//!
//! The tests' user is root, whom sudo asks for nothing. What stands for sudo here asks as sudo does with `-S`: its prompt on
//! standard error, three tries, byte by byte from standard input, and "Sorry, try again." in between.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use trunkline_testkit::Sshd;

use super::{Fleet, outputs};
use crate::home::{Home, boxes, describe, finish_with, program, text, with_status};
use crate::tty::Terminal;

const SUDO: &str = r#"#!/bin/bash
echo "$@" >> "${0%/*}/arguments"
while [ "$1" != -- ]; do
    case $1 in -p) prompt=$2; shift;; -u) user=$2; shift;; esac
    shift
done
shift
case $SSH_CONNECTION in
    *127.0.1.3*) exec env SUDO_USER="$user" "$@";;
    *127.0.1.4*) right=other;;
    *127.0.1.5*) echo "you are not in the sudoers file" >&2; exit 1;;
    *) right=right;;
esac
for try in 1 2 3; do
    printf %s "$prompt" >&2
    IFS= read -r password || exit 1
    [ "$password" = "$right" ] && exec env SUDO_USER="$user" "$@"
    echo >> "${0%/*}/refused"
    echo "Sorry, try again." >&2
done
echo "sudo: 3 incorrect password attempts" >&2
exit 1
"#;

/// A fleet whose hosts have this sudo, and its directory.
fn fleet(hosts: u8) -> (Fleet, PathBuf) {
    let home = Home::new();
    let sudo = home.script("bin/sudo", SUDO);
    let directory = sudo.parent().unwrap().to_owned();
    let path = format!("{}:/usr/bin:/bin", directory.display());
    let builder = Sshd::builder().any_loopback_address();
    let builder = builder.config(&format!("SetEnv SHLVL=1 PATH={path}"));
    let server = builder.start().unwrap();
    let config = home.config(boxes(&server, hosts));
    (Fleet { server, home, config }, directory)
}

/// The run, on a terminal, with a file as its input.
fn on_terminal(fleet: &Fleet, arguments: &str) -> Terminal {
    let input = fleet.home.path("input");
    fs::write(&input, "the input\n").unwrap();
    let script = format!("exec \"$T\" run -F \"$F\" {arguments} < \"$I\"");
    let mut shell = fleet.home.command("bash");
    shell
        .args(["-c", &script])
        .env("T", program())
        .env("F", &fleet.config)
        .env("I", &input);
    Terminal::start(&shell)
}

#[test]
fn the_password_is_asked_for_once_and_input_goes_to_the_command() {
    let (fleet, directory) = fleet(3);
    let mut terminal = on_terminal(&fleet, "-H box[1-3] --become=deploy 'echo $SUDO_USER: $(cat)'");
    terminal.answer("password for sudo: ", "right\r");
    terminal.expect("3 succeeded");
    assert_eq!(terminal.end().code(), Some(0));
    let shown = terminal.text();
    // That of the host which asks for nothing may come before the question.
    assert_eq!(shown.matches("deploy: the input").count(), 3, "{shown}");
    assert_eq!(shown.matches("password for sudo").count(), 1, "{shown}");
    assert!(
        !shown.contains("right") && !shown.contains("[begun") && !shown.contains("[sudo"),
        "{shown}"
    );
    // It is on no command line, and no two hosts' questions are alike.
    let arguments = fs::read_to_string(directory.join("arguments")).unwrap();
    assert!(!arguments.contains("right"), "{arguments}");
    let mut questions: Vec<&str> = arguments
        .split("[sudo ")
        .skip(1)
        .map(|rest| &rest[..32])
        .collect();
    questions.sort_unstable();
    questions.dedup();
    assert_eq!(questions.len(), 3, "{arguments}");
}

#[test]
fn a_wrong_password_is_tried_on_one_host_only() {
    let (fleet, directory) = fleet(2);
    let mut terminal = on_terminal(&fleet, "-H box[1-2] --become 'echo ran {n}'");
    terminal.answer("password for sudo: ", "typo\r");
    terminal.answer("wrong password; password for sudo: ", "right\r");
    terminal.expect("2 succeeded");
    assert_eq!(terminal.end().code(), Some(0));
    assert_eq!(
        fs::read_to_string(directory.join("refused"))
            .unwrap()
            .lines()
            .count(),
        1
    );
}

#[test]
fn a_host_with_another_password_is_asked_for_alone() {
    let (fleet, _) = fleet(4);
    let mut terminal = on_terminal(&fleet, "-j 1 -H box[1-2,4] --become 'echo ran {host}'");
    terminal.answer("(box1) password for sudo: ", "right\r");
    terminal.answer("(box4) wrong password; password for sudo: ", "other\r");
    terminal.expect("3 succeeded");
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn hosts_with_passwords_of_their_own_are_asked_for_in_the_order_of_the_list() {
    let (fleet, directory) = fleet(6);
    let sudo = directory.join("sudo");
    // Each host has its own, and the first of the list is the last to ask.
    let script = SUDO
        .replace(
            "*127.0.1.4*) right=other;;",
            "*127.0.1.[1246]*) right=${SSH_CONNECTION#* * 127.0.1.};;",
        )
        .replace(
            "*) right=right;;\nesac",
            "esac\nright=${right% *}; case $right in 6) sleep 0.5;; esac",
        );
    fs::write(sudo, script).unwrap();
    let mut terminal = on_terminal(&fleet, "-H box6,box2,box4,box1 --become 'echo ran {host}'");
    terminal.answer("(box6) password for sudo: ", "6\r");
    for number in [2, 4, 1] {
        terminal.answer(
            &format!("(box{number}) wrong password; password for sudo: "),
            &format!("{number}\r"),
        );
    }
    terminal.expect("4 succeeded");
    assert_eq!(terminal.end().code(), Some(0));
    let shown = terminal.text();
    assert_eq!(shown.matches("password for sudo").count(), 4, "{shown}");
}

#[test]
fn ctrl_c_at_the_question_starts_nothing_and_says_so() {
    let (fleet, directory) = fleet(2);
    let mut terminal = on_terminal(&fleet, "-H box[1-2] --become 'echo ran {n}'");
    terminal.answer("password for sudo: ", "\x03");
    terminal.expect("interrupted; not started: box[1-2]");
    assert_eq!(terminal.end().signal(), Some(2));
    let shown = terminal.text();
    assert!(
        shown.contains("2 not started") && !shown.contains("box1!") && !shown.contains("nobody gave one"),
        "{shown}"
    );
    assert!(!directory.join("refused").exists());
}

#[test]
fn without_anybody_to_ask_only_hosts_that_need_no_password_run() {
    let (fleet, _) = fleet(5);
    let mut run = fleet.command(&["-H", "box1,box3,box5", "--become", "--json"]);
    let output = with_status(1, finish_with(run.arg("echo $(cat); echo err >&2"), b"typed\n"));
    assert_eq!(outputs(&output)["box3"], "typed\n");
    let hosts = super::json(&output);
    assert_eq!(hosts["box3"]["stderr"], "err\n");
    for (host, why) in [
        ("box1", "sudo asks for a password, and nobody gave one"),
        ("box5", "sudo did not run the command (exit status 1)"),
    ] {
        let told = &hosts[host];
        assert_eq!(
            (&told["kind"], &told["execution"]),
            (&"sudo".into(), &"did not start".into())
        );
        assert_eq!(told["error"], why, "{}", describe(&output));
    }
    assert_eq!(hosts["box5"]["stderr"], "you are not in the sudoers file\n");
}

#[test]
fn a_script_runs_as_another_user_too() {
    let (fleet, _) = fleet(3);
    let script = fleet
        .home
        .script("script", "#!/bin/bash\necho \"$SUDO_USER $A $1 $(cat)\"\n");
    let mut run = fleet.command(&["-H", "box3", "--become=app", "--env", "A=b c", "--script"]);
    let output = with_status(0, finish_with(run.arg(&script).arg("it's"), b"the input"));
    assert_eq!(text(&output.stdout), "box3: app b c it's the input\n");
}
