//! Command lines of ssh(1), a table of them: status, standard output and standard error are word by word those of the ssh
//! that is installed. What differs on purpose is in a table of its own, with the guide's words for it.

use std::fs;
use std::iter;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;

use super::messages;
use crate::home::{Home, closed_address, describe, finish, server, text};

/// A line each, with words in single quotes as a shell has them. `BOX` is the server, `BUSY` a port of this machine that is
/// taken, `HALF` one that is taken for IPv4 only, `FREE` one where nobody listens, `DIR` a directory of the test's own.
const LINES: &str = "\
-V|-V BOX true|-VQ|-Q cipher|-Q cipher-auth|-Q mac|-Q kex|-Q kex-gss|-Q key|-Q key-cert|-Q key-plain|-Q key-sig\
|-Q protocol-version|-Q compression|-Q sig|-Q help|-Q Ciphers|-Q HostKeyAlgorithms|-Q PubkeyAcceptedAlgorithms|-Q nonsense\
|-Q|-Qcipher BOX true|-h|--help|-?|--version|-G BOX|-G -l me BOX|-G -p 0 BOX|-G|-G ''|-G -o NoSuch=1 BOX\
|-O check BOX|-O forward -L 1:h:2 BOX|-O cancel -L 1:h:2 BOX|-O exit BOX|-O stop BOX|-O proxy BOX|-O nonsense BOX|-O|-O check\
|-O check -S DIR/none BOX|-O check -S none BOX|-O exit -S DIR/none BOX|-O check -o ControlPath=DIR/none BOX|-O check ''\
|-I DIR/none.so BOX true|-I none BOX true|-X BOX 'echo $DISPLAY'|-Y BOX 'echo $DISPLAY'|-x BOX 'echo $DISPLAY'\
|-XY BOX echo out|-X -o ForwardX11Trusted=yes BOX echo out|-B lo BOX echo out|-B nosuch0 BOX echo out|-B '' BOX echo out\
|-b 127.0.0.1 BOX echo out|-b nonsense.invalid BOX echo out|-b '' BOX echo out|-b 192.0.2.1 BOX echo out|-b ::1 BOX echo out\
|-w nonsense BOX true|-w -1 BOX true|-w '' BOX true|-w nonsense:0 BOX true|-o Tunnel=nonsense BOX true\
|-N -L BUSY:127.0.0.1:1 -o ExitOnForwardFailure=yes BOX|-L BUSY:127.0.0.1:1 BOX echo out\
|-L BUSY:127.0.0.1:1 -o ExitOnForwardFailure=yes BOX echo out|-D BUSY BOX echo out\
|-D BUSY -o ExitOnForwardFailure=yes BOX echo out|-R BUSY:127.0.0.1:1 BOX echo out\
|-R BUSY:127.0.0.1:1 -o ExitOnForwardFailure=yes BOX echo out|-N -R BUSY:127.0.0.1:1 -o ExitOnForwardFailure=yes BOX\
|-f -N -L BUSY:h:1 -o ExitOnForwardFailure=yes BOX|-fN -R BUSY:h:1 -o ExitOnForwardFailure=yes BOX\
|-L 127.0.0.1:BUSY:127.0.0.1:1 BOX echo out|-L localhost:BUSY:127.0.0.1:1 BOX echo out\
|-L nosuch.invalid:1234:127.0.0.1:1 BOX echo out|-L 192.0.2.1:1234:127.0.0.1:1 BOX echo out\
|-L DIR/no/sock:127.0.0.1:1 BOX echo out|-R DIR/no/sock:127.0.0.1:1 BOX echo out|-L 1 BOX true|-L 1:2 BOX true\
|-L 99999:h:1 BOX true|-L 1:h:99999 BOX true|-L 0:h:1 BOX true|-L '' BOX true|-R '' BOX true|-D '' BOX true|-D 99999 BOX true\
|-R 99999:h:1 BOX true|-R nonsense BOX true|-W '' BOX|-W 127.0.0.1 BOX|-W 127.0.0.1:0 BOX|-W 127.0.0.1:99999 BOX|-W :1 BOX\
|-W [::1]:FREE BOX|-W 127.0.0.1:FREE BOX|-W nosuch.invalid:1 BOX|-W 127.0.0.1:FREE -N BOX|-W 127.0.0.1:FREE BOX cmd\
|-N -s BOX sftp|-s BOX|-s BOX ''|-f BOX|-e ab BOX true|-e '' BOX true|-e ^ BOX true|-e ^@ BOX true\
|-e none BOX echo|'' true|'' ''|- true|-- BOX echo -n a|-- '' true|-- - true|@BOX true|me@ true|@ true|ssh:// true\
|ssh://BOX echo uri|ssh://BOX/ echo uri|ssh://BOX/path echo uri|ssh://BOX:x true|ssh://BOX:0 true|ssh://BOX:99999 true\
|ssh://BOX: echo uri|ssh://:22 true|ssh://@BOX true|ssh://a%zzb@BOX true|ssh://a%2@BOX true|ssh://a%00@BOX true|ssh://[::1 true\
|ssh:/BOX true|SSH://BOX echo|sftp://BOX true|ssh://BOX?x true|ssh://BOX#x true|nosuch.invalid true|a.b..c true|-box true\
|-oProxyCommand=false true|'a b' true|'a;b' true|'$(x)' true|`x` true|*.x true|'me$x@BOX' true|-l '' BOX true\
|-l 'a b' BOX true|-l '-x' BOX true|-l 'a;b' BOX true|-p '' BOX true|-p 22x BOX true|-p -1 BOX true\
|-i DIR/none BOX echo|-i DIR/none -i DIR/neither BOX echo|-i '' BOX echo|-i none BOX echo|-i DIR/directory BOX echo\
|-i ~/nosuch BOX echo|-i ~nosuchuser/id BOX echo|-i %d/nosuch BOX echo|-i %q BOX echo|-i '$NOPE/x' BOX echo|-i '${NOPE}/x' BOX echo\
|-i DIR/none -o BatchMode=yes -l nobody BOX echo|-q -i DIR/none BOX echo|-o IdentityFile=DIR/none BOX echo\
|-o IdentityFile=DIR/none -o IdentityFile=DIR/neither BOX echo|-q -o IdentityFile=DIR/none BOX echo\
|-o IdentityFile=DIR/none -o BatchMode=yes -l nobody BOX echo|-o CertificateFile=DIR/none BOX echo|-i DIR/none-cert.pub BOX echo\
|-F DIR/none BOX true|-F none BOX true|-F '' BOX true|-E DIR/no/x BOX true|-E DIR/log -y BOX true|-E DIR/log BOX echo\
|-o 'ForwardAgent=$NOPE' BOX echo|-o 'ForwardAgent=${NOPE}' BOX echo|-o ForwardAgent=DIR/none BOX echo|-o ForwardAgent=no/such BOX echo\
|-o ForwardAgent=yes BOX echo|-A BOX echo|-o 'IdentityAgent=$NOPE' BOX echo|-o IdentityAgent=DIR/none BOX echo\
|-o IdentityAgent=nonsense BOX echo|-o ControlPath=%q BOX echo|-o 'ControlPath=${NOPE}' BOX echo|-o RemoteCommand=x BOX y\
|-o 'RemoteCommand=echo %n %h %p %r' BOX|-o SetEnv=A BOX echo|-o SetEnv= BOX echo|-o SendEnv= BOX echo|-o = BOX true|-o '' BOX true\
|-o NoSuch BOX true|-o NoSuch=x BOX true|-o User BOX true|-o 'User \"a' BOX true|-o 'User a b' BOX true|-o Port=0 BOX true\
|-o Match=all BOX true|-o Host=BOX BOX true|-o Include=DIR/none BOX true|-o Protocol=1 BOX true|-o Cipher=3des BOX true\
|-o RSAAuthentication=no BOX echo|-o RhostsRSAAuthentication=no BOX echo|-o UsePrivilegedPort=yes BOX echo|-o UseRoaming=no BOX echo\
|-o KeepAlive=no BOX echo|-o DSAAuthentication=no BOX echo|-o AddKeysToAgent=nonsense BOX echo|-o AddKeysToAgent=yes BOX echo\
|-o CASignatureAlgorithms=nonsense BOX echo|-o HostbasedAcceptedAlgorithms=nonsense BOX echo|-o IPQoS=nonsense BOX echo\
|-o RekeyLimit=1 BOX echo|-o RekeyLimit=nonsense BOX echo|-o ServerAliveCountMax=x BOX echo|-o ConnectionAttempts=0 BOX echo\
|-o TunnelDevice=x BOX echo|-o PermitRemoteOpen=nonsense BOX echo|-o PermitRemoteOpen=none BOX echo|-o StreamLocalBindMask=9 BOX echo\
|-o ProxyJump=a -o ProxyCommand=b BOX echo|-J nosuch.invalid BOX echo|-J '' BOX echo|-J a,,b BOX echo|-J ssh://a:x BOX echo|-J @ BOX echo\
|-J none BOX echo|-o ProxyCommand= BOX echo|-o ProxyCommand=- BOX echo\
|-o ProxyUseFdpass=yes BOX echo|-o PKCS11Provider=none BOX echo|-o EnableSSHKeysign=yes BOX echo|-o LogVerbose=x BOX echo\
|-o VerifyHostKeyDNS=yes BOX echo|-o HashKnownHosts=x BOX echo|-o PubkeyAuthentication=unbound BOX echo|-q -W 127.0.0.1:FREE BOX\
|-q -l nobody -o BatchMode=yes BOX true|-q nosuch.invalid true|-q -p FREE BOX true|-q -Z BOX true|-M -S none BOX echo|-S DIR/none BOX echo|-S none BOX echo\
|-4 -6 BOX echo|-6 BOX echo|-46 -p FREE BOX echo|-1 BOX echo|-2 BOX echo|-K BOX echo|-k BOX echo|-c '' BOX echo|-m '' BOX echo\
|-c 3des-cbc BOX echo|-c +aes128-cbc BOX echo|-c blowfish BOX echo|-m hmac-md5 -c aes128-ctr BOX echo|-o KexAlgorithms= BOX echo\
|-o KexAlgorithms=^nonsense BOX echo|-Z|-z BOX|-j BOX|-H BOX|-p|-l|-i|-tt|-v|-46|-L|BOX -p|BOX -Z|BOX -V|BOX -Q cipher|BOX -G\
|BOX -O check|BOX -h|-P|-P tag|-n -N";

/// The differences: a line, ssh's answer, the answer here, and the guide's words for it.
const DIFFERENT: &[(&str, &str, &str, &str)] = &[
    (
        "-o LocalCommand=%q -o PermitLocalCommand=yes BOX echo",
        "percent_expand",
        "trunkline: cannot expand LocalCommand",
        "a token that a directive does not have",
    ),
    (
        "-L *:HALF:127.0.0.1:1 BOX echo out",
        "",
        "bind [0.0.0.0]:HALF: Address already in use",
        "a port that is taken on one of several addresses",
    ),
    (
        "-o VisualHostKey=yes BOX echo",
        "+----[SHA256]-----+",
        "",
        "VisualHostKey",
    ),
    (
        "-L DIR/taken:127.0.0.1:1 BOX echo out",
        "Address already in use\n",
        "Address already in use: something else has this name",
        "a socket that cannot be listened on",
    ),
    (
        "-i DIR/open BOX echo",
        "WARNING: UNPROTECTED PRIVATE KEY FILE!",
        "",
        "a key file that cannot be used",
    ),
];

fn outcome(output: &Output) -> (Option<i32>, String, String) {
    (output.status.code(), text(&output.stdout), messages(output))
}

struct Table {
    home: Home,
    server: trunkline_testkit::Sshd,
    busy: [TcpListener; 2],
    half: TcpListener,
    free: SocketAddr,
}

impl Table {
    fn new() -> Self {
        let home = Home::new();
        fs::write(home.path("taken"), "").unwrap();
        fs::DirBuilder::new()
            .mode(0o700)
            .create(home.path("directory"))
            .unwrap();
        fs::write(home.path("open"), "no key\n").unwrap();
        // Of one moment: nobody else is given it while the other is held.
        let half = TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = iter::repeat_with(|| {
            let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = v4.local_addr().unwrap().port();
            Some([v4, TcpListener::bind(("::1", port)).ok()?])
        })
        .take(100)
        .find_map(|both| both)
        .expect("a port that is free for both families; is there IPv6 on loopback?");
        let free = closed_address();
        Self {
            home,
            server: server(),
            busy,
            half,
            free,
        }
    }

    fn words(&self, line: &str) -> Vec<String> {
        let mut words = Vec::new();
        for (index, part) in line.split('\'').enumerate() {
            match index % 2 {
                1 => words.push(part.to_owned()),
                _ => words.extend(part.split_whitespace().map(str::to_owned)),
            }
        }
        words.iter().map(|word| self.fill_in(word)).collect()
    }

    fn fill_in(&self, text: &str) -> String {
        let dir = self.home.path("");
        text.replace("BOX", self.server.alias())
            .replace("BUSY", &self.busy[0].local_addr().unwrap().port().to_string())
            .replace("HALF", &self.half.local_addr().unwrap().port().to_string())
            .replace("FREE", &self.free.port().to_string())
            .replace("DIR", dir.to_str().unwrap().trim_end_matches('/'))
    }

    fn both(&self, line: &str) -> [Output; 2] {
        let config = self.server.ssh_config();
        let mut ssh = self.home.command("ssh");
        ssh.arg("-F").arg(&config);
        [ssh, self.home.ssh_with(&config)].map(|mut command: Command| {
            let words = self.words(line);
            finish(
                command
                    .args(words)
                    .current_dir(self.home.path(""))
                    .stdin(Stdio::null()),
            )
        })
    }
}

#[test]
fn command_lines_are_answered_as_by_ssh() {
    let table = Table::new();
    let differences = Mutex::new(Vec::new());
    let compare = |line: &str| {
        let [theirs, ours] = table.both(line);
        // What sshd says in the session comes before or behind what the client says.
        let [theirs_by_whom, ours_by_whom] = [&theirs, &ours].map(|output| {
            let (status, output, messages) = outcome(output);
            let lines = messages.lines().map(str::to_owned);
            let (of_server, of_client): (Vec<_>, Vec<_>) =
                lines.partition(|line| line.starts_with("Could not chdir to home directory "));
            (status, output, of_server, of_client)
        });
        if theirs_by_whom != ours_by_whom {
            let shown = format!("{line}\n{}\n{}", describe(&theirs), describe(&ours));
            differences.lock().unwrap().push(shown);
        }
    };
    // Two that the system's ssh carries out would meet at its control socket, which it tells of; two that have the server
    // listen on one port, on their connection, where the second is told of the first; and of two with one identity file,
    // only the one that opens their connection is told that the file is not there.
    let (alone, others): (Vec<_>, Vec<_>) = LINES.split('|').partition(|line| {
        ["-X", "-Y", "-K", "-I", "-R", "IdentityFile="]
            .iter()
            .any(|option| line.contains(option))
    });
    alone.iter().for_each(|line| compare(line));
    let others = Mutex::new(others.iter());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let next = others.lock().unwrap().next();
                    let Some(line) = next else { return };
                    compare(line);
                }
            });
        }
    });
    let differences = differences.into_inner().unwrap();
    assert!(
        differences.is_empty(),
        "{}: {}",
        differences.len(),
        differences.join("\n")
    );
}

#[test]
fn command_lines_that_are_answered_otherwise_are_in_the_guide() {
    let table = Table::new();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/ssh.md");
    let guide = fs::read_to_string(guide).unwrap();
    for (line, ssh_says, we_say, words) in DIFFERENT {
        let [theirs, ours] = table.both(line);
        let shown = format!("{line}\n{}\n{}", describe(&theirs), describe(&ours));
        let ((_, _, theirs), (_, _, ours)) = (outcome(&theirs), outcome(&ours));
        assert!(
            theirs.contains(&table.fill_in(ssh_says)) && theirs != ours,
            "{shown}"
        );
        assert!(ours.contains(&table.fill_in(we_say)), "{shown}");
        assert!(guide.contains(words), "{words}");
    }
}
