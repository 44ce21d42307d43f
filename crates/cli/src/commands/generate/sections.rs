//! The sections of man pages, except the options, for each command.

use anyhow::Context as _;

/// A term and its meaning; or the description of an example and its lines.
pub(super) type Row = (&'static str, &'static str);

/// The sections of one page.
pub(super) struct Sections {
    /// Replaces the synopsis of `--help`, unless it is empty.
    pub(super) synopsis: &'static str,
    pub(super) description: &'static str,
    pub(super) exit_status: &'static [Row],
    pub(super) environment: &'static [Row],
    pub(super) files: &'static [Row],
    pub(super) examples: &'static [Row],
    pub(super) see_also: &'static [&'static str],
}

/// Returns the sections of a command, which is named as it is typed.
///
/// # Errors
/// The command has no sections.
pub(super) fn for_command(command: &str) -> anyhow::Result<&'static Sections> {
    ALL.iter()
        .find(|(name, _)| *name == command)
        .map(|(_, sections)| sections)
        .with_context(|| format!("`{command}` has no sections for its man page"))
}

const DONE_OR_NOT: &[Row] = &[
    ("0", "It was done."),
    ("2", "The arguments are wrong."),
    ("255", "It could not be done; standard error says why."),
];

const DIR: Row = (
    "TRUNKLINE_DIR",
    "Directory for sockets, state and settings, instead of the XDG directories.",
);
const DAEMON: Row = (
    "TRUNKLINED",
    "The daemon's program. By default it is searched for beside trunkline, then in ../libexec/trunkline.",
);
const SSH: Row = (
    "TRUNKLINE_SSH",
    "The ssh program that is asked for the configuration, and that reaches hosts which need it.",
);
const OFF: Row = (
    "TRUNKLINE_OFF",
    "If set to 1, trunkline ssh runs the system's ssh instead, and stock ssh connects by itself.",
);
const STRICT: Row = (
    "TRUNKLINE_STRICT",
    "If set to 1, a command that cannot share a connection fails with the reason instead of making its own.",
);
const LOG: Row = (
    "TRUNKLINE_LOG",
    "The log filter of a daemon that this command starts, such as debug or trunkline=trace.",
);
const UP_LIMIT: Row = (
    "TRUNKLINE_UP_LIMIT",
    "Milliseconds that trunkline up may take before stock ssh connects by itself; 180 by default.",
);
const AGENT: Row = ("SSH_AUTH_SOCK", "The socket of the SSH agent.");
const ASKPASS: Row = (
    "SSH_ASKPASS, SSH_ASKPASS_REQUIRE, DISPLAY, WAYLAND_DISPLAY",
    "The program that asks questions if there is no terminal, by ssh's rules.",
);
const NO_COLOR: Row = ("NO_COLOR", "If it is set and not empty, output is not coloured.");
const TMPDIR: Row = (
    "TMPDIR",
    "The directory of unnamed temporary files for input and output that exceed memory; /tmp by default.",
);

const CONFIG: Row = (
    "~/.config/trunkline/config.toml",
    "Trunkline's own settings; the file need not exist. trunkline settings prints all of them.",
);
const STATE: Row = (
    "~/.local/state/trunkline/",
    "Facts remembered about hosts, and the daemon's log, daemon.log.",
);
const RUNTIME: Row = (
    "$XDG_RUNTIME_DIR/trunkline/",
    "The daemon's sockets. Without a login session: ~/.cache/trunkline/.",
);
const SSH_CONFIG: Row = (
    "~/.ssh/config, /etc/ssh/ssh_config",
    "Everything about hosts: names, users, jump hosts, keys, options. See ssh_config(5).",
);
const KNOWN_HOSTS: Row = (
    "~/.ssh/known_hosts, /etc/ssh/ssh_known_hosts",
    "The host keys that are accepted.",
);

const ENVIRONMENT: &[Row] = &[DIR, DAEMON];
const CONNECTING: &[Row] = &[DIR, DAEMON, SSH, AGENT, ASKPASS];
const DAEMON_FILES: &[Row] = &[CONFIG, STATE, RUNTIME];
const HOST_FILES: &[Row] = &[SSH_CONFIG, KNOWN_HOSTS, CONFIG, STATE, RUNTIME];

const AUDIT_FILES: &[Row] = &[
    CONFIG,
    (
        "~/.local/state/trunkline/audit/",
        "The trail: audit.jsonl, older files, and head, which records the trail's end.",
    ),
];

const AUDIT_STATUS: &[Row] = &[
    ("0", "The trail is intact."),
    ("1", "The trail was changed; the problems are printed."),
    ("2", "The arguments are wrong."),
    ("255", "The trail cannot be read, or there is none."),
];

const RUN_FILES: &[Row] = &[
    SSH_CONFIG,
    KNOWN_HOSTS,
    CONFIG,
    STATE,
    (
        "~/.local/state/trunkline/run.history",
        "Lines typed at the prompt of trunkline run, except those that begin with a space.",
    ),
    RUNTIME,
];

const SETUP: Sections = Sections {
    synopsis: "",
    description: "Sets up other programs to use trunkline's connections. The new lines are between two comments that \
                  name trunkline. The previous version of a file is kept beside it, and --undo removes the lines again.",
    exit_status: DONE_OR_NOT,
    environment: &[DIR, DAEMON, OFF],
    files: &[],
    examples: &[],
    see_also: &["trunkline-setup(1)", "trunkline(1)", "ssh_config(5)"],
};

/// Each command, as it is typed.
pub(super) const ALL: &[(&str, Sections)] = &[
    (
        "trunkline",
        Sections {
            synopsis: "",
            description: "Trunkline keeps one authenticated SSH connection to each host open in the background, and all \
                          your commands share it. The first command to a host connects and logs in; the next one takes a \
                          single round trip. Hosts, keys, the agent and known hosts are those of ssh(1), and nothing is \
                          installed on the servers.\n\n\
                          The first command that needs the daemon starts it. An idle connection is closed after ten \
                          minutes, or after the host's ControlPersist.\n\n\
                          Some programs accept the path of an ssh program, but no arguments for it. Give them a link to \
                          trunkline whose name begins with \"ssh\": under such a name, trunkline accepts ssh's \
                          arguments.",
            exit_status: &[
                ("0", "It was done."),
                ("1", "run, cp, stream: at least one host or file failed."),
                ("2", "The arguments are wrong. For ssh: 255, as with ssh(1)."),
                (
                    "255",
                    "An error of trunkline's own. For ssh, also a command that a signal ended.",
                ),
                ("128+N", "run, cp and stream: ended by signal N."),
            ],
            environment: &[
                DIR, DAEMON, OFF, STRICT, SSH, LOG, UP_LIMIT, AGENT, ASKPASS, NO_COLOR, TMPDIR,
            ],
            files: HOST_FILES,
            examples: &[
                (
                    "Run a command. The second time takes one round trip:",
                    "trunkline ssh web1 uptime\ntrunkline ssh web1 uptime",
                ),
                (
                    "Run it on many hosts:",
                    "trunkline run -H 'web[01-20],db1' uptime",
                ),
                (
                    "Have your own ssh, git, rsync and Ansible use the connections:",
                    "trunkline setup ssh",
                ),
                (
                    "List the connections, and close them all:",
                    "trunkline ls\ntrunkline close --all",
                ),
            ],
            see_also: &[
                "ssh(1)",
                "ssh_config(5)",
                "trunkline-ssh(1)",
                "trunkline-run(1)",
                "trunkline-cp(1)",
                "trunkline-setup(1)",
            ],
        },
    ),
    (
        "trunkline ssh",
        Sections {
            synopsis: "trunkline ssh [OPTIONS] destination [command [argument ...]]",
            description: "Works like ssh(1), over a connection that all your commands share. It takes ssh's options, \
                          reads ssh's configuration, and behaves the same on the terminal, including escape sequences \
                          and the exit status.\n\n\
                          Features that the engine does not have (GSSAPI, PKCS#11, X11 and others) are left to the \
                          system's ssh; trunkline explain names them and the reason. With -v, or LogLevel DEBUG in a \
                          file, the log goes to standard error; for a shared connection it begins with how that \
                          connection was made.\n\n\
                          On a terminal, if a key's echo takes 40 ms or longer, keys are shown as they are typed: \
                          letters, Backspace, and the arrows within the typed text, once the program has echoed one \
                          character since the last Enter or control key. A key that is two round trips late is \
                          underlined, and one that the server does not confirm disappears. predict, predict_always_hosts \
                          and predict_never_hosts in config.toml change that.",
            exit_status: &[
                ("0 to 254", "The remote command's own."),
                (
                    "255",
                    "An error of trunkline's own, wrong arguments, or a command that a signal ended.",
                ),
            ],
            environment: &[DIR, DAEMON, OFF, STRICT, SSH, LOG, AGENT, ASKPASS],
            files: HOST_FILES,
            examples: &[
                ("Open a shell:", "trunkline ssh web1"),
                (
                    "Run a command as another user:",
                    "trunkline ssh deploy@web1 systemctl status app",
                ),
                (
                    "Forward a port without a command, in the background:",
                    "trunkline ssh -fN -L 8080:localhost:80 web1",
                ),
                (
                    "Use the system's ssh this once:",
                    "TRUNKLINE_OFF=1 trunkline ssh web1",
                ),
            ],
            see_also: &["ssh(1)", "ssh_config(5)", "trunkline-explain(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline up",
        Sections {
            synopsis: "",
            description: "The lines that trunkline setup ssh adds to ssh_config run this command while ssh reads them. \
                          It makes the daemon connect to the host, if that needs no question, and offer ssh a socket for \
                          the connection. You need not run it by hand.\n\n\
                          If anything is wrong, or if it takes too long, it gives up, and ssh connects by itself.",
            exit_status: &[
                ("0", "ssh can use the shared connection."),
                ("other", "ssh connects by itself."),
            ],
            environment: &[DIR, DAEMON, OFF, STRICT, UP_LIMIT, ASKPASS],
            files: HOST_FILES,
            examples: &[(
                "See why ssh connects by itself:",
                "ssh -v web1 true 2>&1 | grep trunkline:",
            )],
            see_also: &["trunkline-setup-ssh(1)", "ssh_config(5)", "trunkline(1)"],
        },
    ),
    (
        "trunkline setup",
        Sections {
            examples: &[
                ("Everything that runs ssh:", "trunkline setup ssh"),
                ("See first what would be written:", "trunkline setup ssh --print"),
                ("Undo it:", "trunkline setup ssh --undo"),
            ],
            files: &[
                (
                    "~/.ssh/config, ~/.ssh/config.trunkline",
                    "Get the lines of setup ssh.",
                ),
                ("ansible.cfg", "Gets the line of setup ansible."),
                (
                    "~/.gitconfig",
                    "Gets the settings of setup git, by git config --global.",
                ),
            ],
            see_also: &[
                "trunkline-setup-ssh(1)",
                "trunkline-setup-git(1)",
                "trunkline-setup-rsync(1)",
                "trunkline-setup-ansible(1)",
                "trunkline(1)",
            ],
            ..SETUP
        },
    ),
    (
        "trunkline setup ssh",
        Sections {
            description: "Adds a few lines at the end of ~/.ssh/config. From then on ssh, and every program that runs it \
                          (git, rsync, scp, sftp, Ansible), uses the shared connections. ssh still asks its own \
                          questions on a connection of its own, and connects by itself if anything is wrong with \
                          trunkline.",
            files: &[(
                "~/.ssh/config",
                "Gets the lines, unless --file names another file.",
            )],
            examples: &[
                ("Set it up, and use it:", "trunkline setup ssh\ngit fetch"),
                ("Undo it:", "trunkline setup ssh --undo"),
                ("Run one command without it:", "TRUNKLINE_OFF=1 git fetch"),
            ],
            ..SETUP
        },
    ),
    (
        "trunkline setup git",
        Sections {
            description: "Sets core.sshCommand in your global git configuration, and ssh.variant, so that git uses the \
                          shared connections and nothing else changes. If core.sshCommand is already set, it stays \
                          unchanged.",
            files: &[("~/.gitconfig", "Gets the settings, by git config --global.")],
            examples: &[
                ("Set it up, and use it:", "trunkline setup git\ngit fetch"),
                ("Undo it:", "trunkline setup git --undo"),
            ],
            ..SETUP
        },
    ),
    (
        "trunkline setup rsync",
        Sections {
            description: "Sets RSYNC_RSH in your shell's profile, so that rsync uses the shared connections and nothing else \
                          changes. For hosts that trunkline tune has measured, it also prints the options that made rsync faster.",
            files: &[(
                "~/.profile",
                "Or the profile that your shell reads; gets the line, unless --file names another file.",
            )],
            examples: &[
                ("Set it up:", "trunkline setup rsync"),
                ("Undo it:", "trunkline setup rsync --undo"),
            ],
            ..SETUP
        },
    ),
    (
        "trunkline setup ansible",
        Sections {
            description: "Makes Ansible's own ssh plugin follow your ssh_config, by a line in the ansible.cfg that \
                          applies in the current directory. Without it, the plugin sets a ControlPath of its own. Run \
                          trunkline setup ssh as well, or use --drop-in, which needs no change to ssh_config.",
            files: &[("ansible.cfg", "Gets the line, unless --file names another file.")],
            examples: &[
                (
                    "With your ssh_config:",
                    "trunkline setup ssh\ntrunkline setup ansible",
                ),
                (
                    "Without a change to it:",
                    "trunkline setup ansible --drop-in ~/bin/ssh-trunkline",
                ),
            ],
            ..SETUP
        },
    ),
    (
        "trunkline setup mcp",
        Sections {
            synopsis: "trunkline setup mcp CLIENT [--print | --undo] [--file FILE]",
            description: "Makes the client of a coding agent start trunkline mcp, by an entry in its configuration with \
                          the necessary variables: clients pass on only six, and SSH_AUTH_SOCK is not among them. The \
                          clients are claude-code, claude-desktop, codex, cursor, gemini, vscode, windsurf and zed.",
            files: &[(
                "~/.claude.json, ~/.codex/config.toml, ~/.cursor/mcp.json and others",
                "The client's configuration, which gets the entry.",
            )],
            examples: &[
                ("Set it up:", "trunkline setup mcp claude-code"),
                (
                    "See first what would be written:",
                    "trunkline setup mcp codex --print",
                ),
                ("Undo it:", "trunkline setup mcp claude-code --undo"),
            ],
            ..SETUP
        },
    ),
    (
        "trunkline mcp",
        Sections {
            synopsis: "trunkline mcp\ntrunkline mcp check [COMMAND] [--host HOST] [--sudo | --shell] [--read PATH | --write PATH]",
            description: "Serves a coding agent on standard input and output, over the Model Context Protocol: commands \
                          and files on hosts, over shared connections, by the rules in mcp.toml. A call that they do not \
                          allow is denied, or you are asked; each call is recorded in the audit trail.\n\n\
                          trunkline mcp check applies the rules to a command or a path. Its exit status is 0 if that is \
                          allowed, 1 if it is denied, and 2 if you would be asked.",
            exit_status: DONE_OR_NOT,
            environment: ENVIRONMENT,
            files: &[(
                "~/.config/trunkline/mcp.toml",
                "The rules. Without it nothing is allowed.",
            )],
            examples: &[
                (
                    "What do the rules say?",
                    "trunkline mcp check 'systemctl status nginx' --host web1",
                ),
                ("Have a client start it:", "trunkline setup mcp claude-code"),
            ],
            see_also: &[
                "trunkline-setup-mcp(1)",
                "trunkline-audit-show(1)",
                "trunkline(1)",
            ],
        },
    ),
    (
        "trunkline run",
        Sections {
            synopsis: "trunkline run [OPTIONS] -H HOSTS COMMAND...\ntrunkline run [OPTIONS] -i INVENTORY [-H PATTERN] COMMAND...\ntrunkline run [OPTIONS] -H HOSTS --script FILE [ARGUMENT...]\ntrunkline run [OPTIONS] -H HOSTS",
            description: "Runs one command on many hosts at once, over shared connections. Each line of output is \
                          printed as it arrives, prefixed with its host's name; a summary of failures comes last. Every \
                          host gets all of standard input. Without a command, a prompt takes commands for all hosts.\n\n\
                          Everything after the command's first word belongs to the command. {host} in it is the host's \
                          name, {n} its number in the list.\n\n\
                          Ctrl-C sends the commands SIGTERM and waits up to six seconds for them to end. The summary \
                          says which hosts had finished, which were running and which had not started. A command that \
                          may have started is not run again.\n\n\
                          With --become, you are asked for sudo's password once, and it is tried on one host first. It \
                          is sent only to hosts whose sudo asks, and never on a command line.\n\n\
                          With --fleet, standard input and the script are limited to 64 MiB together, and nothing starts \
                          before they have been read to their end; sudo must not need a password.",
            exit_status: &[
                ("0", "Every command on every host succeeded."),
                ("1", "At least one failed or ran out of time."),
                ("2", "The arguments are wrong."),
                ("129, 130, 143", "The run was ended by SIGHUP, SIGINT or SIGTERM."),
                (
                    "255",
                    "The run could not begin, or ran on no host because of an error here.",
                ),
            ],
            environment: &[DIR, DAEMON, SSH, AGENT, ASKPASS, NO_COLOR, TMPDIR],
            files: RUN_FILES,
            examples: &[
                (
                    "A range of hosts and one more:",
                    "trunkline run -H 'web[01-20],db1' uptime",
                ),
                (
                    "All ssh_config aliases that match:",
                    "trunkline run -H 'web*' systemctl is-active app",
                ),
                (
                    "A group of an Ansible inventory:",
                    "trunkline run -i inventory.ini -H web systemctl restart app",
                ),
                (
                    "A script from this machine:",
                    "trunkline run -H 'web*' --script update.sh -- --fast",
                ),
                (
                    "A quarter of the hosts at a time, as root, until one fails; then the rest:",
                    "trunkline run -H 'web*' --serial 25% --fail-fast --failed left \\\n    --become systemctl restart app\n\
                     trunkline run -H @left --become systemctl restart app",
                ),
                (
                    "A file of each host's output, and a table on the screen:",
                    "trunkline run -H 'db[1-3]' --table -O 'logs/{host}/{n}' df -h /",
                ),
                ("A prompt for nine hosts:", "trunkline run -H 'web[1-9]'"),
                (
                    "Identical output once, with the hosts that printed it:",
                    "trunkline run -H 'web*' --collate uname -r",
                ),
            ],
            see_also: &[
                "trunkline-cp(1)",
                "trunkline-stream(1)",
                "ssh_config(5)",
                "trunkline(1)",
            ],
        },
    ),
    (
        "trunkline stream",
        Sections {
            synopsis: "trunkline stream [OPTIONS] --to TARGET HOST... -- COMMAND\ntrunkline stream [OPTIONS] --to TARGET -H HOSTS -- COMMAND",
            description: "Runs a command on each host and writes its output to a FIFO, a Unix socket or a file for as \
                          long as the command runs. If a connection is lost, it connects again and starts the command \
                          again. A slow or missing reader makes the command on the server wait. With --fleet, the nodes \
                          of a fleet run the commands; see trunkline-fleet(1).",
            exit_status: &[
                ("0", "Every command ended with 0."),
                ("1", "At least one did not."),
                ("2", "The arguments are wrong."),
                ("129, 130, 143", "Ended by SIGHUP, SIGINT or SIGTERM."),
                ("255", "Nothing could begin."),
            ],
            environment: &[DIR, DAEMON, SSH, AGENT, ASKPASS, NO_COLOR],
            files: HOST_FILES,
            examples: &[
                (
                    "Follow a log on nine hosts, each in a FIFO:",
                    "trunkline stream --to 'fifo:{host}.log' -H 'db[1-9]' \\\n    -- tail -F app.log",
                ),
                (
                    "On standard output:",
                    "trunkline stream --to - web1 web2 -- journalctl -f -n 0",
                ),
                (
                    "By the nodes of a fleet, until it is cancelled:",
                    "trunkline stream --fleet --detach -H 'db[1-9]' -- tail -F app.log",
                ),
            ],
            see_also: &[
                "trunkline-fleet(1)",
                "trunkline-run(1)",
                "mkfifo(1)",
                "trunkline(1)",
            ],
        },
    ),
    (
        "trunkline fleet",
        Sections {
            synopsis: "trunkline fleet init URL\ntrunkline fleet join [URL]\ntrunkline fleet status [--json]\ntrunkline fleet drain\ntrunkline fleet leave\ntrunkline fleet key\ntrunkline fleet attach JOB\ntrunkline fleet attach STREAM --to TARGET\ntrunkline fleet cancel ID",
            description: "Spreads the work over several control machines, the nodes of a fleet, which coordinate through \
                          a NATS server with JetStream. trunkline run --fleet submits a command, which runs at most once \
                          on each host. trunkline stream --fleet submits a stream, which nodes run until it is \
                          cancelled. Each of these commands lists its options with --help.",
            exit_status: DONE_OR_NOT,
            environment: &[DIR, DAEMON, SSH],
            files: &[(
                "~/.config/trunkline/fleet.toml",
                "How this machine connects to its fleet, and which jobs it accepts. init and join write it.",
            )],
            examples: &[
                ("Make a fleet:", "trunkline fleet init nats://nats1:4222"),
                ("Be a node:", "trunkline fleet join"),
                (
                    "Follow a job that somebody has begun:",
                    "trunkline fleet attach kq3vmlz7ea2xw5bnty6dcf4s",
                ),
                (
                    "Follow a stream into files, from where that was left:",
                    "trunkline fleet attach w2hn5tqbx7mra4ycjz3kfe6d --to 'file:{host}'",
                ),
            ],
            see_also: &[
                "trunkline-run(1)",
                "trunkline-stream(1)",
                "nats-server(8)",
                "trunkline(1)",
            ],
        },
    ),
    (
        "trunkline cp",
        Sections {
            synopsis: "",
            description: "Copies files and trees between this machine and hosts, or from one host to another through \
                          this machine. It uses SFTP over shared connections, so nothing is installed on the servers.\n\n\
                          A file is written beside its target and renamed when it is complete. To resume an interrupted \
                          copy, run the same command again: both ends compare the existing part by hashes, and only the \
                          differences are sent.\n\n\
                          Patterns of --exclude, --include and --filter-from are rsync's, and the first that matches a \
                          name decides. A pattern that begins with a slash begins at the source directory. One that ends \
                          with a slash is for directories. * is any text without a slash, ** any text. A pattern without \
                          a slash is matched against the last part of a path.\n\n\
                          After copying, --delete deletes files in copied directories that the source does not have. \
                          Names that a pattern excludes stay, unless --delete-excluded is given. If anything could not be \
                          listed or copied, nothing is deleted. To make the target the same as SOURCE, copy SOURCE/. \
                          into it.",
            exit_status: &[
                (
                    "0",
                    "Everything was copied; with --check, both ends are the same.",
                ),
                (
                    "1",
                    "Something was not copied; each failed file is named on standard error. With --check: something differs.",
                ),
                ("2", "The arguments are wrong."),
                ("129, 130, 143", "Ended by SIGHUP, SIGINT or SIGTERM."),
                ("255", "The copy could not begin."),
            ],
            environment: CONNECTING,
            files: &[
                (".NAME.HASH.part", "An incomplete file, beside its target."),
                SSH_CONFIG,
                KNOWN_HOSTS,
                CONFIG,
                STATE,
                RUNTIME,
            ],
            examples: &[
                (
                    "Into your home directory on a host:",
                    "trunkline cp report.pdf web1:",
                ),
                (
                    "A tree, into logs/nginx; logs is there (or --mkdir creates it):",
                    "trunkline cp -r web1:/var/log/nginx logs/",
                ),
                (
                    "From host to host:",
                    "trunkline cp -rp web1:/srv/data web2:/srv/data",
                ),
                (
                    "To many hosts:",
                    "trunkline cp app.conf -H 'web[1-50]' :/etc/app/",
                ),
                (
                    "From many hosts, each into a directory of its own:",
                    "trunkline cp -H 'web[1-40]' :/var/log/app.log 'logs/{host}/'",
                ),
                (
                    "A preview of a mirror without object files:",
                    "trunkline cp -an --delete --exclude '*.o' src/. web1:/srv/src",
                ),
                (
                    "A mirror that keeps replaced and deleted files:",
                    "trunkline cp -a --delete --backup-dir ../old src/. web1:/srv/src",
                ),
                (
                    "An archive of this directory, over a pipe:",
                    "tar c . | trunkline cp - web1:/backup/today.tar",
                ),
            ],
            see_also: &["scp(1)", "rsync(1)", "trunkline-tune(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline tune",
        Sections {
            synopsis: "",
            description: "Measures which cipher, compression, request size and number of sessions move data fastest \
                          between here and a host, prints the figures, and makes trunkline cp use the best settings from \
                          then on. Three temporary files are created on the server and removed at the end. The last \
                          lines name options for plain ssh, scp and rsync.",
            exit_status: DONE_OR_NOT,
            environment: CONNECTING,
            files: HOST_FILES,
            examples: &[
                ("Measure, and remember the result:", "trunkline tune web1"),
                (
                    "More thoroughly, with charts:",
                    "trunkline tune --full --report web1.html web1",
                ),
                ("Forget the result:", "trunkline tune --forget web1"),
                ("Measure this machine's ciphers alone:", "trunkline tune --local"),
            ],
            see_also: &["trunkline-cp(1)", "trunkline-explain(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline ls",
        Sections {
            synopsis: "",
            description: "Lists the open connections: the daemon's own, and the ControlMasters of your own ssh that its \
                          ControlPath leads to. They are sorted by name. UP is the time since the log-in; CLOSES IN is \
                          the time until an idle connection is closed; RTT is the shortest round trip of the server's \
                          answers, beginning with the log-in; RATE is shown while there is traffic. With hosts as \
                          arguments it lists only these, and names those without a connection. A narrow terminal shows \
                          fewer columns.\n\n\
                          With --json, times are in seconds: since counts from 1970, rtt and closes_in are durations. \
                          rate is in bits a second, sent and received in bytes.",
            exit_status: DONE_OR_NOT,
            environment: ENVIRONMENT,
            files: &[SSH_CONFIG, RUNTIME],
            examples: &[
                ("The connections:", "trunkline ls"),
                ("As they change, looked at each second:", "trunkline ls --watch=1"),
                ("For a program:", "trunkline ls --json"),
                (
                    "The names of all hosts with running sessions:",
                    "trunkline ls --json | jq -r '.[]\n    | select(any(.connections[]; .sessions > 0)) | .name'",
                ),
            ],
            see_also: &[
                "trunkline-status(1)",
                "trunkline-check(1)",
                "trunkline-close(1)",
                "trunkline(1)",
            ],
        },
    ),
    (
        "trunkline top",
        Sections {
            synopsis: "",
            description: "Shows the daemon's work live in the terminal: hosts with their connections, rates and round \
                          trips; sessions, with their commands and the programs that asked for them; the copies of \
                          trunkline cp, with their progress; and failures. Press ? for the keys: / shows only rows that \
                          contain some letters, s sorts by another column, Enter shows the details of a row, and c \
                          closes the connections to a host after asking you.\n\n\
                          With --fleet it shows the fleet that this machine belongs to: nodes, shards, their moves and \
                          the reasons, jobs.\n\n\
                          It does not start a daemon. If none is running, or one ends, it says so and waits for the \
                          next.",
            exit_status: &[
                ("0", "The user ended it, or the terminal was closed."),
                ("2", "The arguments are wrong."),
                ("129, 130, 143", "Ended by SIGHUP, SIGINT or SIGTERM."),
                ("255", "There is no terminal."),
            ],
            environment: &[DIR, NO_COLOR],
            files: DAEMON_FILES,
            examples: &[
                ("The daemon, once a second:", "trunkline top"),
                ("The fleet:", "trunkline top --fleet"),
                ("Five times a second:", "trunkline top --interval 200ms"),
            ],
            see_also: &[
                "trunkline-serve-ui(1)",
                "trunkline-ls(1)",
                "trunkline-status(1)",
                "trunkline(1)",
            ],
        },
    ),
    (
        "trunkline serve-ui",
        Sections {
            synopsis: "",
            description: "Serves a page that shows the daemon's work live: hosts, connections, rates, latencies as \
                          histograms, sessions, copies with their progress, and recent failures. It prints the page's \
                          address and runs until it is interrupted.\n\n\
                          With --fleet the page shows the fleet that this machine belongs to: nodes, shards and their \
                          moves, jobs.\n\n\
                          It listens on 127.0.0.1 only. The address contains a token that is new each time: anyone with \
                          the address and an account on this machine can see the page, including the names of hosts and \
                          the commands on them. The page is read-only and loads nothing from elsewhere.",
            exit_status: &[
                ("2", "The arguments are wrong."),
                ("130, 143", "Ended by SIGINT or SIGTERM."),
                ("255", "It cannot listen on the port."),
            ],
            environment: &[DIR],
            files: DAEMON_FILES,
            examples: &[
                ("The page, in a browser:", "trunkline serve-ui"),
                ("The fleet:", "trunkline serve-ui --fleet"),
                (
                    "On another machine, over its own ssh:",
                    "ssh -L 8080:127.0.0.1:8080 box trunkline serve-ui --port 8080",
                ),
            ],
            see_also: &["trunkline-top(1)", "trunkline-metrics(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline status",
        Sections {
            synopsis: "",
            description: "Shows the daemon: its process, version, memory, open descriptors, sockets, log, settings and \
                          load. It does not start one.",
            exit_status: &[
                ("0", "The daemon runs."),
                ("1", "No daemon runs."),
                ("2", "The arguments are wrong."),
                ("255", "The daemon does not answer, or is of another version."),
            ],
            environment: ENVIRONMENT,
            files: DAEMON_FILES,
            examples: &[
                ("The daemon:", "trunkline status"),
                ("Its memory in bytes:", "trunkline status --json | jq .memory"),
            ],
            see_also: &["trunkline-ls(1)", "trunkline-stop(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline metrics",
        Sections {
            synopsis: "",
            description: "Prints the daemon's metrics in Prometheus' text format: connections, handshakes and sessions \
                          with their times, bytes, copies, memory. It does not start a daemon. The daemon also serves \
                          them over HTTP at /metrics on the socket metrics.sock, which only you can open, and on a port \
                          of 127.0.0.1 if metrics_port in config.toml names one; on that port, anyone with an account on \
                          this machine can read the names of hosts.\n\n\
                          With --fleet they are those of the fleet's node on this machine, whose socket is \
                          fleet-metrics.sock, and whose port is metrics_port in fleet.toml.",
            exit_status: &[
                ("0", "They were printed."),
                ("1", "No daemon runs, or, with --fleet, no node."),
                ("2", "The arguments are wrong."),
                (
                    "255",
                    "The daemon or node does not answer, or is of another version; or the file cannot be written.",
                ),
            ],
            environment: ENVIRONMENT,
            files: DAEMON_FILES,
            examples: &[
                ("All of them:", "trunkline metrics"),
                (
                    "For node_exporter, by a timer:",
                    "trunkline metrics --textfile \\\n    /var/lib/prometheus/node-exporter/trunkline.prom",
                ),
                (
                    "From the socket:",
                    "curl --unix-socket $XDG_RUNTIME_DIR/trunkline/metrics.sock \\\n    http://localhost/metrics",
                ),
            ],
            see_also: &["trunkline-status(1)", "trunkline-settings(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline check",
        Sections {
            synopsis: "",
            description: "Checks that the connection to each host is alive, and measures its round trip. It does not \
                          connect; for a host without a connection it says why the last attempt to connect failed, if \
                          there was one. A pattern matches the hosts that have connections, or aliases of ssh_config if \
                          it matches none of them. Hosts are reported as they answer; failures are summed up in a table, \
                          where hosts that failed alike share a row.",
            exit_status: &[
                ("0", "Every host answered."),
                ("2", "The arguments are wrong."),
                ("255", "A host has no connection, or did not answer."),
            ],
            environment: ENVIRONMENT,
            files: HOST_FILES,
            examples: &[
                ("Is it alive?", "trunkline check web1"),
                ("Are these?", "trunkline check 'web[01-20]' 'db*'"),
                ("All of an inventory:", "trunkline check -i inventory.ini"),
            ],
            see_also: &["trunkline-ls(1)", "trunkline-close(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline close",
        Sections {
            synopsis: "",
            description: "Closes connections. A connection accepts no new sessions and closes when its running ones have \
                          ended; with --now it closes at once, which ends them. ControlMasters of your own ssh are \
                          closed too. A pattern matches the hosts that have connections.",
            exit_status: &[
                ("0", "It was done."),
                ("2", "The arguments are wrong."),
                ("255", "A named host had nothing to close, or an error."),
            ],
            environment: ENVIRONMENT,
            files: &[SSH_CONFIG, RUNTIME],
            examples: &[
                ("One host, when its sessions have ended:", "trunkline close web1"),
                ("Every connection, at once:", "trunkline close --all --now"),
                (
                    "Remove what ControlMasters left behind:",
                    "trunkline close --stale",
                ),
            ],
            see_also: &["trunkline-ls(1)", "trunkline-stop(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline warm",
        Sections {
            synopsis: "",
            description: "Connects to hosts ahead of time, and asks you any questions then, so that later commands need \
                          no log-in. With --pin the connections stay until you close them. Hosts are named as for \
                          trunkline run. They are reported as they are connected; failures are summed up in a table, \
                          where hosts that failed alike share a row.",
            exit_status: &[
                ("0", "Every host is connected."),
                ("2", "The arguments are wrong."),
                ("255", "At least one is not connected."),
            ],
            environment: CONNECTING,
            files: HOST_FILES,
            examples: &[
                ("Two hosts:", "trunkline warm web1 web2"),
                ("Three hundred:", "trunkline warm 'web[001-300]'"),
                ("For the whole day:", "trunkline warm --pin db1"),
            ],
            see_also: &["trunkline-close(1)", "trunkline-ls(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline explain",
        Sections {
            synopsis: "",
            description: "Shows how a host is resolved, whether trunkline's own engine or the system's ssh connects to \
                          it and why, the settings of ssh_config and options that differ from ssh's defaults, its \
                          connections and their state, and the facts remembered about it. With --all, it also shows the \
                          settings that two requests must have in common to share a connection.",
            exit_status: DONE_OR_NOT,
            environment: &[DIR, DAEMON, SSH],
            files: HOST_FILES,
            examples: &[
                ("One host:", "trunkline explain web1"),
                (
                    "Have its server found out anew:",
                    "trunkline explain --forget web1",
                ),
                (
                    "Is its next command going to be fast?",
                    "trunkline explain --json web1 | jq '.connections | length'",
                ),
                (
                    "Why do two commands not share a connection?",
                    "trunkline explain --all web1 > a\ntrunkline explain --all -o Compression=yes web1 > b\ndiff a b",
                ),
            ],
            see_also: &["ssh_config(5)", "trunkline-tune(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline stop",
        Sections {
            synopsis: "",
            description: "Stops the daemon. It accepts no new requests and ends when running sessions have ended; with \
                          --now it ends at once. The next command that needs a daemon starts a new one.",
            exit_status: DONE_OR_NOT,
            environment: ENVIRONMENT,
            files: DAEMON_FILES,
            examples: &[
                ("After an update of the program:", "trunkline stop"),
                ("At once, which ends what is running:", "trunkline stop --now"),
            ],
            see_also: &["trunkline-close(1)", "trunkline-daemon(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline daemon",
        Sections {
            synopsis: "",
            description: "Runs the daemon in the foreground, by becoming trunklined. The daemon starts by itself when it is first \
                          needed; this command is for systemd and other service managers.",
            exit_status: &[
                ("0", "It was stopped."),
                ("2", "The arguments are wrong."),
                ("255", "It could not start; another daemon may be running."),
            ],
            environment: &[DIR, DAEMON, SSH, LOG],
            files: DAEMON_FILES,
            examples: &[
                ("By hand:", "trunkline daemon"),
                ("With more in the log:", "TRUNKLINE_LOG=debug trunkline daemon"),
            ],
            see_also: &["systemd.service(5)", "trunkline-stop(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline completions",
        Sections {
            synopsis: "",
            description: "Prints completions for a shell, to be read by it. In bash, zsh and fish they complete hosts \
                          from ssh_config, from known_hosts (names that are not hashed) and from the open connections, \
                          and for trunkline cp the paths on hosts that are connected. Completion never opens a \
                          connection, and if the daemon does not answer, the shell waits for two seconds at most.",
            exit_status: DONE_OR_NOT,
            environment: ENVIRONMENT,
            files: &[
                (
                    "~/.local/share/bash-completion/completions/trunkline",
                    "Where bash looks for them.",
                ),
                (
                    "~/.config/fish/completions/trunkline.fish",
                    "Where fish looks for them.",
                ),
                SSH_CONFIG,
                KNOWN_HOSTS,
            ],
            examples: &[
                ("In this shell:", "source <(trunkline completions bash)"),
                (
                    "For every bash:",
                    "cd ~/.local/share/bash-completion/completions
trunkline completions bash > trunkline",
                ),
                (
                    "For every zsh, in a directory of its fpath:",
                    "trunkline completions zsh > ~/.zfunc/_trunkline",
                ),
                (
                    "For every fish:",
                    "cd ~/.config/fish/completions
trunkline completions fish > trunkline.fish",
                ),
            ],
            see_also: &["bash(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline man",
        Sections {
            synopsis: "",
            description: "Writes the man pages of trunkline and of each of its commands to a directory, which is created if it is \
                          missing.",
            exit_status: DONE_OR_NOT,
            environment: &[("MANPATH", "Where man(1) looks for pages.")],
            files: &[("~/.local/share/man/man1/", "Where man(1) looks for your own.")],
            examples: &[
                (
                    "For yourself:",
                    "trunkline man ~/.local/share/man/man1 && man trunkline-run",
                ),
                ("For everybody:", "sudo trunkline man /usr/local/share/man/man1"),
            ],
            see_also: &["man(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline audit",
        Sections {
            synopsis: "",
            description: "Shows and checks the audit trail, which records the work on hosts through the daemon, and by \
                          programs in Python and Node, if audit in config.toml is on or strict.",
            exit_status: AUDIT_STATUS,
            environment: ENVIRONMENT,
            files: AUDIT_FILES,
            examples: &[
                ("What was done?", "trunkline audit show"),
                ("Was anything changed?", "trunkline audit verify"),
                ("For a program:", "trunkline audit verify --json | jq .problems"),
            ],
            see_also: &[
                "trunkline-audit-show(1)",
                "trunkline-audit-verify(1)",
                "trunkline-settings(1)",
                "trunkline(1)",
            ],
        },
    ),
    (
        "trunkline audit show",
        Sections {
            synopsis: "",
            description: "Prints the audit trail: one line for each piece of work, with its host, its requester, and how \
                          it ended; work without an end comes last.",
            exit_status: DONE_OR_NOT,
            environment: ENVIRONMENT,
            files: AUDIT_FILES,
            examples: &[
                (
                    "What was done on a host today:",
                    "trunkline audit show --host web1 --since 1d",
                ),
                (
                    "What a coding agent did:",
                    "trunkline audit show --who claude-code",
                ),
                (
                    "For a program:",
                    "trunkline audit show --json | jq -c 'select(.event == \"end\")'",
                ),
            ],
            see_also: &["trunkline-audit-verify(1)", "trunkline-mcp(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline audit verify",
        Sections {
            synopsis: "",
            description: "Checks that no record of the audit trail was changed or removed: each holds its number and the \
                          hash of the one before. The file head beside them reveals records that were removed at the \
                          end; if somebody changed that file too, only --head, with a last record that was noted \
                          elsewhere, reveals it. Removed older files are reported, and are not an error.",
            exit_status: AUDIT_STATUS,
            environment: ENVIRONMENT,
            files: AUDIT_FILES,
            examples: &[
                ("Was anything changed?", "trunkline audit verify"),
                ("For a program:", "trunkline audit verify --json | jq .problems"),
                (
                    "A copy of a trail, on another machine:",
                    "trunkline audit verify /srv/audit/web-admin",
                ),
            ],
            see_also: &["trunkline-settings(1)", "trunkline(1)"],
        },
    ),
    (
        "trunkline settings",
        Sections {
            synopsis: "",
            description: "Prints every setting of config.toml with its value, its default and its meaning. The values \
                          are those of the running daemon, which read the file when it was started; without a daemon, \
                          those of the file. Settings in the file are marked with an asterisk.",
            exit_status: DONE_OR_NOT,
            environment: ENVIRONMENT,
            files: &[CONFIG],
            examples: &[
                ("All of them:", "trunkline settings"),
                (
                    "What is set:",
                    "trunkline settings --json | jq -c '.[]\n    | select(.value != .default) | {key, value}'",
                ),
            ],
            see_also: &["trunkline-daemon(1)", "trunkline(1)"],
        },
    ),
];
