use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use trunkline_request::ssh_options::SSH_OPTIONS;

fn parse(words: &[&str]) -> Result<SshArgs, UsageError> {
    SshArgs::parse(words.iter().map(OsString::from))
}

/// Splits a line like a shell: at spaces, with single quotes as the only quoting.
fn words(line: &str) -> Vec<OsString> {
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.into());
        } else {
            words.extend(part.split_whitespace().map(OsString::from));
        }
    }
    words
}

fn read(line: &str) -> SshArgs {
    SshArgs::parse(words(line)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn a_line_splits_into_options_destination_and_command_as_in_ssh() {
    let table: &[(&str, &[&str], &str, Option<&str>)] = &[
        ("host", &[], "host", None),
        ("host uptime", &[], "host", Some("uptime")),
        ("-p2222 host", &["-p", "2222"], "host", None),
        ("-vvTp2222 -- host -x", &["-p", "2222"], "host", Some("-x")),
        ("host -l u cmd -x", &["-l", "u"], "host", Some("cmd -x")),
        ("host -- cmd -x", &[], "host", Some("cmd -x")),
        ("-- host -- cmd", &[], "host", Some("-- cmd")),
        ("-oUser=x host", &["-o", "User=x"], "host", None),
        ("-o 'User x' host", &["-o", "User x"], "host", None),
        ("-e none -4A host ls  -l", &["-4", "-A"], "host", Some("ls -l")),
        ("-l -- host -v", &["-l", "--"], "host", Some("-v")),
        ("host 'a  b' c", &[], "host", Some("a  b c")),
        ("u@host -l x", &["-l", "u", "-l", "x"], "u@host", None),
        (
            "ssh://u%40corp@host:44 -p 22",
            &["-l", "u@corp", "-p", "44", "-p", "22"],
            "ssh://u%40corp@host:44",
            None,
        ),
        (
            "-C host -i key -- -weird",
            &["-C", "-i", "key"],
            "host",
            Some("-weird"),
        ),
        ("-2tt host", &[], "host", None),
        ("- x", &[], "-", Some("x")),
        ("-v- x", &[], "-v-", Some("x")),
    ];
    for (line, config_args, destination, command) in table {
        let args = read(line);
        assert_eq!(args.config_args, *config_args, "{line}");
        assert_eq!(args.destination, *destination, "{line}");
        assert_eq!(args.command.as_deref(), command.map(OsStr::new), "{line}");
        assert_eq!(args.original, words(line), "{line}");
    }
}

#[test]
fn switches_settle_what_goes_on_inside_the_session() {
    for (line, tty) in [
        ("host", TtyRequest::Auto),
        ("-t host", TtyRequest::Yes),
        ("-tt host", TtyRequest::Force),
        ("-t host -t", TtyRequest::Force),
        ("-ttt host", TtyRequest::Yes),
        ("-t -T host", TtyRequest::No),
        ("-N host", TtyRequest::No),
        ("-oRequestTTY=yes -t host", TtyRequest::Force),
        ("-t -o 'requesttty no' host", TtyRequest::Yes),
        ("-o RequestTTY=force host", TtyRequest::Force),
    ] {
        assert_eq!(read(line).tty, tty, "{line}");
    }
    for (line, verbosity, quiet) in [
        ("-v -q host", 1, true),
        ("-q -v host", 1, false),
        ("-vvvv host", 3, false),
        ("host", 0, false),
    ] {
        let args = read(line);
        assert_eq!((args.verbosity, args.quiet), (verbosity, quiet), "{line}");
    }
    for (line, escape) in [
        ("-e none host", Some(EscapeChar::None)),
        ("-e ^A host", Some(EscapeChar::Byte(1))),
        ("-e% host", Some(EscapeChar::Byte(b'%'))),
        ("-e ^ host", Some(EscapeChar::Byte(b'^'))),
        ("host", None),
    ] {
        assert_eq!(read(line).escape, escape, "{line}");
    }
    let args = read("-f -s -E log host sftp");
    assert!(args.background && args.no_stdin && args.subsystem && !args.no_command);
    assert_eq!(
        (args.log_file, args.command),
        (Some("log".into()), Some("sftp".into()))
    );
    let args = read("-W db:5432 jump");
    assert!(args.no_command);
    assert_eq!(args.stdio_forward, Some(("db".into(), 5432)));
    assert!(read("-n host").no_stdin && read("-o StdinNull=yes host").no_stdin);
    assert!(!read("-o StdinNull=no host").no_stdin);
    assert!(read("-s -o SessionType=none host sftp").subsystem);
}

#[test]
fn what_only_the_system_ssh_does_is_named() {
    let lines = "-G host|-Q cipher|-V|-M host|-S /s host|-O check host|-y host|-P tag host|-P host";
    for line in lines.split('|') {
        let args = read(line);
        let reason = args
            .needs_system_ssh()
            .unwrap_or_else(|| panic!("{line} needs the system's ssh"));
        assert!(reason.starts_with(&line[..2]), "{line}: {reason}");
        assert_eq!(args.original, words(line));
    }
    let args = read("-O check host");
    assert_eq!(
        (args.mux_command, args.print_config, args.version),
        (Some("check".into()), false, false)
    );
    for line in [
        "-oControlMaster=yes -oControlPath=/p host",
        "-o 'ControlMaster ask' host",
        "-o ControlPath=/p host",
        "-o ControlMaster=no -oControlPath=/p host",
    ] {
        let reason = read(line).needs_system_ssh();
        assert!(
            reason.is_some_and(|reason| reason.starts_with("-o Control")),
            "{line}: {reason:?}"
        );
    }
    assert_eq!(read("-Q cipher").query, Some("cipher".into()));
    assert!(read("-V").version && read("-G host").print_config && read("-y host").syslog);
    for line in [
        "host",
        "-X host",
        "-Y host",
        "-K host",
        "-I lib.so host",
        "-w 0 host",
        "-S none host",
        "-S none -o ControlPath=/p host",
        "-o ControlPath=none host",
        "-o ControlMaster=auto -o ControlPath=/p -o ControlPersist=60 host",
        "-o ControlMaster=no -o ControlMaster=yes host",
        "-A -C -J j -L 1:h:2 -t host",
        "-W a:1 host",
    ] {
        assert_eq!(read(line).needs_system_ssh(), None, "{line}");
    }
}

#[test]
fn what_ssh_refuses_is_refused() {
    for (line, error) in [
        ("", UsageError::NoDestination),
        ("-v", UsageError::NoDestination),
        ("@host", UsageError::NoDestination),
        ("ssh://@host", UsageError::NoDestination),
        ("-Z host", UsageError::UnknownOption('Z')),
        ("--help", UsageError::UnknownOption('-')),
        ("host -p", UsageError::MissingValue('p')),
        ("-s host", UsageError::NoSubsystem),
        ("-e ab host", UsageError::BadEscapeCharacter("ab".into())),
        ("-N -s host sftp", UsageError::SessionTypeConflict('s')),
        ("-s -N host sftp", UsageError::SessionTypeConflict('N')),
        (
            "-o SessionType=default -N host",
            UsageError::SessionTypeConflict('N'),
        ),
        ("-y -E log host", UsageError::TwoLogs),
        ("-1 host", UsageError::ProtocolOne),
    ] {
        let words = words(line);
        assert_eq!(SshArgs::parse(words.clone()), Err(error.clone()), "{line}");
        let real = Command::new("ssh")
            .arg("-F/dev/null")
            .args(["-o", "BatchMode=yes", "-G"])
            .args(&words)
            .stdin(Stdio::null())
            .output()
            .expect("this test needs the program ssh (openssh-client)");
        assert_eq!(real.status.code(), Some(UsageError::EXIT_STATUS.into()), "{line}");
        let shows_usage = |text: &str| text.contains("usage: ssh");
        assert_eq!(
            shows_usage(&error.to_string()),
            shows_usage(&String::from_utf8_lossy(&real.stderr)),
            "{line}: usage is shown exactly where ssh shows it"
        );
    }
}

#[test]
fn the_synopsis_names_every_option() {
    let switches = USAGE.split(['-', ']']).nth(1).expect("a cluster of switches");
    for option in SSH_OPTIONS {
        let letter = char::from(option.letter);
        let named = match (letter, option.value) {
            // Obsolete switches, and one that is now an option with a value.
            ('1' | '2' | 'P', _) => continue,
            (_, Some(value)) => USAGE.contains(&format!("[-{letter} {value}]")),
            (_, None) => switches.contains(letter),
        };
        assert!(named, "{option:?}");
    }
}

#[test]
fn arguments_need_not_be_text() {
    let odd = OsString::from_vec(b"-o\xff=\xfe".to_vec());
    let args = SshArgs::parse([odd, "h".into(), OsString::from_vec(vec![0xff])]).expect("a valid line");
    assert_eq!(
        args.config_args,
        [OsString::from("-o"), OsString::from_vec(b"\xff=\xfe".to_vec())]
    );
    assert_eq!(args.command, Some(OsString::from_vec(vec![0xff])));
    assert_eq!(
        parse(&["-p", "", "h"]).map(|args| args.config_args),
        Ok(vec!["-p".into(), "".into()])
    );
}

/// Returns the output of `ssh -G` for a line, by keyword, or `None` if it refuses the line.
fn ssh_g<S: AsRef<OsStr>>(arguments: &[S]) -> Option<BTreeMap<String, Vec<String>>> {
    let output = Command::new("ssh")
        .args(["-F/dev/null", "-G"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("this test needs the program ssh (openssh-client)");
    if !output.status.success() {
        return None;
    }
    let mut printed = BTreeMap::<String, Vec<String>>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (keyword, value) = line.split_once(' ').unwrap_or((line, ""));
        printed
            .entry(keyword.to_owned())
            .or_default()
            .push(value.to_owned());
    }
    Some(printed)
}

/// The keywords of `ssh -G` that [`SshArgs`] has in a field or leaves to the pool.
const IN_FIELDS: &str = "requesttty sessiontype stdinnull forkafterauthentication escapechar loglevel \
    controlmaster controlpath";

/// Options to combine, as typed in a shell.
const OPTIONS: &str = "-4|-6|-A|-a|-C|-x|-g|-k|-vv|-q|-t|-tt|-T|-n|-f|-N|-s|-Tn|-2|-K|-X|-M|--|-p 2201\
    |-p2202|-l lena|-lmax|-vlnina|-o 'User olga'|-oUser=otto|-o 'Port = 2203'|-oRequestTTY=yes\
    |-o 'RequestTTY no'|-oSessionType=none|-oSessionType=subsystem|-oStdinNull=no|-oStdinNull=yes\
    |-oForkAfterAuthentication=yes|-oForkAfterAuthentication=no|-oLogLevel=DEBUG|-o 'bogus yes'\
    |-J j1,u@j2:23|-c aes128-ctr|-m hmac-sha2-256|-b 127.0.0.1|-B lo|-L 8080:web:80|-R8081:web:81\
    |-D 1080|-W db:5432|-e none|-e ^B|-e%|-i /dev/null|-S /none.sock|-w 1:2|-E /dev/null";

fn options(at_most: usize) -> impl Strategy<Value = Vec<OsString>> {
    let option = prop::sample::select(OPTIONS.split('|').collect::<Vec<_>>());
    prop::collection::vec(option.prop_map(words), 0..=at_most).prop_map(|options| options.concat())
}

const DESTINATIONS: &str = "web1|anna@web1|a@b@web1|ssh://web1|ssh://bert@web1:2299|ssh://web1:2298/\
    |ssh://c%64@web1|ssh://dora;fp=1@web1|10.1.2.3|user@|@web1|ssh://web1:port|-bad";

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn config_args_resolve_as_the_whole_line_does(
        before in options(4),
        destination in prop::sample::select(DESTINATIONS.split('|').collect::<Vec<_>>()),
        after in options(3),
        command in prop::collection::vec(prop::sample::select(vec!["ls", "-l", "--", "-p", "22"]), 0..3),
    ) {
        let mut line = before;
        line.push(destination.into());
        line.extend(after);
        line.extend(command.into_iter().map(OsString::from));
        let whole = ssh_g(&line);
        let ours = SshArgs::parse(line.clone()).ok().and_then(|args| {
            let mut words = args.config_args.clone();
            words.extend(["--".into(), args.destination.clone()]);
            // ssh refuses to fork without a command only after it has read its configuration.
            let forks_for_nothing = args.background && args.command.is_none() && !args.no_command;
            ssh_g(&words).filter(|_| !forks_for_nothing).map(|printed| (args, printed))
        });
        let (Some(whole), Some((args, ours))) = (&whole, &ours) else {
            prop_assert_eq!(whole.is_some(), ours.is_some(), "one refuses {:?}", line);
            return Ok(());
        };
        for (keyword, values) in whole {
            if IN_FIELDS.split(' ').all(|field| field != keyword) {
                prop_assert_eq!(Some(values), ours.get(keyword), "{} of {:?}", keyword, &line);
            }
        }
        let printed = |keyword: &str| whole.get(keyword).map_or("", |values| values[0].as_str());
        let truth = |value: bool| if value { "yes" } else { "no" };
        prop_assert_eq!(truth(args.no_stdin), printed("stdinnull"), "{:?}", &line);
        prop_assert_eq!(truth(args.background), printed("forkafterauthentication"), "{:?}", &line);
        let session = match (args.no_command, args.subsystem) {
            (true, _) => "none",
            (_, true) => "subsystem",
            _ => "default",
        };
        prop_assert_eq!(session, printed("sessiontype"), "{:?}", &line);
        let tty = match args.tty {
            TtyRequest::Auto => "auto",
            TtyRequest::No => "false",
            TtyRequest::Yes => "true",
            TtyRequest::Force => "force",
        };
        prop_assert_eq!(tty, printed("requesttty"), "{:?}", &line);
        let escape = match args.escape {
            None => "~".to_owned(),
            Some(EscapeChar::None) => "none".to_owned(),
            Some(EscapeChar::Byte(byte)) if byte < 32 => format!("\\^{}", char::from(byte | 64)),
            Some(EscapeChar::Byte(byte)) => char::from(byte).to_string(),
        };
        prop_assert_eq!(escape, printed("escapechar"), "{:?}", &line);
    }

    #[test]
    fn no_line_panics_or_loses_a_word(words in prop::collection::vec("[-@:a-zA-Z0-9 =]{0,6}", 0..6)) {
        let line: Vec<&str> = words.iter().map(String::as_str).collect();
        if let Ok(args) = parse(&line) {
            prop_assert_eq!(args.original, line);
        }
    }
}
