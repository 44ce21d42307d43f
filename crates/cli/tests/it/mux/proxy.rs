//! Proxy mode: stock ssh, and a client of the tests' own, speak the connection protocol over a mux socket.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use trunkline_testkit::free_port;

use super::forwards::{echo, says, works};
use super::rude::{greet, is_closed, packet, reply, string};
use super::stock::Stock;
use crate::home::{PATIENCE, assert_status, fail, finish_with, server, text, wait_until, with_status};
use crate::tty::Terminal;

/// Stock ssh as a client in proxy mode; add options, the alias and a command.
fn proxy_command(stock: &Stock) -> Command {
    let mut command = stock.ssh();
    command.args(["-O", "proxy"]);
    command
}

/// A client that goes on until it is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn stock_ssh_runs_commands_over_the_daemons_connection() {
    let stock = Stock::new(server());
    let alias = stock.server.alias().to_owned();
    let output = fail(
        7,
        proxy_command(&stock).args([&alias, "echo out; echo err >&2; exit 7"]),
    );
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("out\n".into(), "err\n".into())
    );
    fail(255, proxy_command(&stock).args([&alias, "kill -TERM $$"]));
    let bytes: Vec<u8> = (0..16_u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let output = with_status(
        0,
        finish_with(proxy_command(&stock).args([&alias, "cat"]), &bytes),
    );
    assert!(output.stdout == bytes, "what cat was given comes back");
    stock.assert_logins(1);
}

#[test]
fn stock_ssh_has_a_terminal() {
    let stock = Stock::new(server());
    let mut terminal = Terminal::start(proxy_command(&stock).arg(stock.server.alias()));
    terminal.send("PS1='pro''mpt> '\n");
    terminal.answer("prompt> ", "echo [$TERM $(stty size)]\n");
    terminal.expect("[xterm 24 80]");
    terminal.resize(132, 50);
    terminal.send("until stty size | grep '^50 132$'; do :; done; echo si''zed\n");
    terminal.answer("sized\r\n", "exit 3\n");
    assert_eq!(terminal.end().code(), Some(3));
    stock.assert_logins(1);
}

#[test]
fn stock_ssh_forwards_in_both_directions() {
    let stock = Stock::new(server());
    let (target, local, remote) = (echo(), free_port(), free_port());
    let socket = stock.home.path("listens");
    let here = format!("127.0.0.1:{target}");
    let client = Running::start(
        proxy_command(&stock)
            .args(["-L", &format!("127.0.0.1:{local}:{here}")])
            .args(["-R", &format!("127.0.0.1:{remote}:{here}")])
            .args(["-R", &format!("{}:{here}", socket.display())])
            .args(["-o", "ExitOnForwardFailure=yes", stock.server.alias(), "cat"]),
    );
    wait_until("the local port is carried", || works(local));
    wait_until("the remote port is carried", || works(remote));
    wait_until("the remote socket is carried", || {
        UnixStream::connect(&socket).is_ok_and(|stream| says(stream, "hello"))
    });
    let kept = TcpStream::connect(("127.0.0.1", remote)).unwrap();
    assert!(says(&kept, "kept"));
    drop(client);
    wait_until("the server listens no more", || {
        TcpListener::bind(("127.0.0.1", remote)).is_ok()
    });
    stock.warm();
    stock.assert_logins(1);
}

#[test]
fn what_ends_the_connection_ends_the_client() {
    let stock = Stock::new(server());
    let mut client = Proxy::new(&stock);
    assert_status(&stock.control(&["exit"]), 0);
    assert!(is_closed(&mut client.stream));
}

/// A client of the tests' own.
struct Proxy {
    stream: UnixStream,
    /// The bytes that the server has allowed to send, on whichever channel, beyond the first window.
    credit: usize,
}

const WINDOW: u32 = 2 << 20;
const SESSION: &[u8] = b"session";

/// Parts of a message, one behind the other.
fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn number(value: u32) -> [u8; 4] {
    value.to_be_bytes()
}

fn number_at(message: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(message[offset..offset + 4].try_into().unwrap())
}

impl Proxy {
    fn new(stock: &Stock) -> Self {
        let mut stream = greet(stock);
        stream.write_all(&packet(0x1000_000f, &number(5))).unwrap();
        assert_eq!(reply(&mut stream), (0x8000_000f, number(5).to_vec()));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, credit: 0 }
    }

    /// Sends a message.
    fn send(&mut self, kind: u8, parts: &[&[u8]]) {
        let body = parts.concat();
        let len = u32::try_from(2 + body.len()).unwrap();
        let packet = [&number(len)[..], &[0, kind], &body].concat();
        self.stream.write_all(&packet).unwrap();
    }

    /// The next message that is not one of credit: its number and what follows.
    fn next(&mut self) -> (u8, Vec<u8>) {
        loop {
            let mut head = [0; 6];
            self.stream.read_exact(&mut head).unwrap();
            let mut body = vec![0; number_at(&head, 0) as usize - 2];
            self.stream.read_exact(&mut body).unwrap();
            if head[5] != 93 {
                return (head[5], body);
            }
            self.credit += number_at(&body, 4) as usize;
        }
    }

    /// The next message, which is this one.
    #[track_caller]
    fn expect(&mut self, kind: u8) -> Vec<u8> {
        let (found, body) = self.next();
        assert_eq!(found, kind, "{}", String::from_utf8_lossy(&body));
        body
    }

    /// Opens a channel, and says which number it has there.
    fn open(&mut self, kind: &[u8], ours: u32, window: u32, rest: &[u8]) -> u32 {
        let kind = string(str::from_utf8(kind).unwrap());
        self.send(90, &[&kind, &number(ours), &number(window), &number(32768), rest]);
        let body = self.expect(91);
        assert_eq!((number_at(&body, 0), number_at(&body, 8)), (ours, WINDOW));
        number_at(&body, 4)
    }

    /// Asks something of a session.
    fn ask(&mut self, channel: u32, name: &str, wants_reply: bool, body: &[u8]) {
        let wants = [u8::from(wants_reply)];
        self.send(98, &[&number(channel), &string(name), &wants, body]);
    }

    /// A session that runs a command.
    fn run(&mut self, ours: u32, window: u32, command: &str) -> u32 {
        let channel = self.open(SESSION, ours, window, &[]);
        self.ask(channel, "exec", true, &string(command));
        assert_eq!(self.expect(99), number(ours));
        channel
    }

    /// Whether a session can be opened and used: its output and status.
    fn works(&mut self, ours: u32) {
        let channel = self.run(ours, WINDOW, "echo works; exit 9");
        let data = self.expect(94);
        assert_eq!(data, join(&[&number(ours), &string("works\n")]));
        assert_eq!(self.expect(96), number(ours));
        let ended = self.expect(98);
        let status = join(&[&number(ours), &string("exit-status"), &[0], &number(9)]);
        assert_eq!(ended, status);
        assert_eq!(self.expect(97), number(ours));
        self.send(97, &[&number(channel)]);
    }
}

#[test]
fn a_channel_that_is_not_read_holds_up_no_other_and_loses_nothing() {
    let stock = Stock::new(server());
    let mut client = Proxy::new(&stock);
    let idle = client.run(1, 10, "head -c 30000000 /dev/zero");
    assert_eq!(
        client.expect(94),
        join(&[&number(1), &string("\0\0\0\0\0\0\0\0\0\0")])
    );
    client.works(2);
    client.send(93, &[&number(idle), &number(u32::MAX)]);
    let mut left = 30_000_000 - 10;
    while left > 0 {
        left -= client.expect(94).len() - 8;
    }
    assert_eq!(client.expect(96), number(1));
    client.expect(98);
    client.expect(97);
    stock.assert_logins(1);
}

#[test]
fn credit_returns_when_the_server_has_taken_the_data() {
    let stock = Stock::new(server());
    let mut client = Proxy::new(&stock);
    let gate = stock.home.path("gate");
    let wait = format!("while ! test -e {}; do sleep 0.01; done; wc -c", gate.display());
    let channel = client.run(1, WINDOW, &wait);
    let piece = string(&"x".repeat(32768));
    let mut sent = 0;
    let mut send = |client: &mut Proxy| {
        let had = sent;
        while sent + 32768 <= WINDOW as usize + client.credit {
            client.send(94, &[&number(channel), &piece]);
            sent += 32768;
        }
        (sent, sent > had)
    };
    // Another session in between shows that nothing more comes for this one.
    while send(&mut client).1 {
        client.works(2);
    }
    let stalled = send(&mut client).0;
    assert!(
        stalled < 8 << 20,
        "{stalled} bytes wait for a command that reads none"
    );
    std::fs::write(&gate, "").unwrap();
    while send(&mut client).0 < stalled + (16 << 20) {
        client.works(2);
    }
    let sent = send(&mut client).0;
    client.send(96, &[&number(channel)]);
    let data = client.expect(94);
    assert_eq!(text(&data[8..]).trim(), sent.to_string());
}

#[test]
fn requests_are_answered_as_sshd_answers_them_and_in_order() {
    let stock = Stock::new(server());
    let mut client = Proxy::new(&stock);
    let channel = client.open(SESSION, 3, WINDOW, &[]);
    client.ask(channel, "auth-agent-req@openssh.com", true, &[]);
    client.ask(
        channel,
        "env",
        true,
        &join(&[&string("NOT_ACCEPTED"), &string("1")]),
    );
    client.ask(channel, "window-change", false, &[0; 16]);
    client.ask(channel, "nothing@example.com", true, b"?");
    client.ask(channel, "exec", true, &string("kill -KILL $$"));
    for kind in [100, 100, 100, 99] {
        assert_eq!(client.expect(kind), number(3));
    }
    client.expect(96);
    let signal = client.expect(98);
    let expected = join(&[
        &number(3),
        &string("exit-signal"),
        &[0],
        &string("KILL"),
        &[0],
        &string(""),
        &string(""),
    ]);
    assert_eq!(signal, expected);
    assert_eq!(client.expect(97), number(3));
    client.send(97, &[&number(channel)]);
    // Global ones: a keepalive, nonsense, a port, and its end.
    for name in ["keepalive@openssh.com", "nothing@example.com"] {
        client.send(80, &[&string(name), &[1]]);
        client.expect(82);
    }
    client.send(
        80,
        &[&string("tcpip-forward"), &[1], &string("127.0.0.1"), &number(0)],
    );
    let port = number_at(&client.expect(81), 0);
    for kind in [81, 82] {
        client.send(
            80,
            &[
                &string("cancel-tcpip-forward"),
                &[1],
                &string("127.0.0.1"),
                &number(port),
            ],
        );
        client.expect(kind);
    }
    client.send(80, &[&string("no-more-sessions@openssh.com"), &[0]]);
    client.send(
        90,
        &[&string("session"), &number(4), &number(WINDOW), &number(32768)],
    );
    assert_eq!(client.expect(92)[..8], join(&[&number(4), &number(1)]));
    client.send(90, &[&string("x11"), &number(5), &number(WINDOW), &number(32768)]);
    assert_eq!(client.expect(92)[..8], join(&[&number(5), &number(3)]));
}

#[test]
fn connections_go_both_ways_and_a_refusal_has_the_servers_words() {
    let stock = Stock::new(server());
    let mut client = Proxy::new(&stock);
    let from = join(&[&string("127.0.0.1"), &number(1)]);
    let to = |port: u16| join(&[&string("127.0.0.1"), &number(port.into()), &from]);
    let channel = client.open(b"direct-tcpip", 1, WINDOW, &to(echo()));
    client.send(94, &[&number(channel), &string("there and back")]);
    assert_eq!(client.expect(94), join(&[&number(1), &string("there and back")]));
    client.send(96, &[&number(channel)]);
    assert_eq!(client.expect(96), number(1));
    assert_eq!(client.expect(97), number(1));
    client.send(97, &[&number(channel)]);
    let closed = to(free_port());
    client.send(
        90,
        &[
            &string("direct-tcpip"),
            &number(2),
            &number(WINDOW),
            &number(32768),
            &closed,
        ],
    );
    let refusal = client.expect(92);
    assert_eq!(refusal[..8], join(&[&number(2), &number(2)]));
    assert!(String::from_utf8_lossy(&refusal).contains("Connection refused"));

    client.send(
        80,
        &[&string("tcpip-forward"), &[1], &string("localhost"), &number(0)],
    );
    let port = number_at(&client.expect(81), 0);
    let visitor = TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
    let offer = client.expect(90);
    let head = join(&[&string("forwarded-tcpip")]);
    assert_eq!(offer[..head.len()], head);
    let theirs = number_at(&offer, head.len());
    let came = visitor.local_addr().unwrap();
    let rest = join(&[
        &string("localhost"),
        &number(port),
        &string("127.0.0.1"),
        &number(came.port().into()),
    ]);
    assert_eq!(offer[head.len() + 12..], rest);
    client.send(91, &[&number(theirs), &number(7), &number(3), &number(32768)]);
    (&visitor).write_all(b"hello").unwrap();
    assert_eq!(client.expect(94), join(&[&number(7), &string("hel")]));
    client.send(93, &[&number(theirs), &number(100)]);
    assert_eq!(client.expect(94), join(&[&number(7), &string("lo")]));
    // What was sent before it closes arrives.
    client.send(94, &[&number(theirs), &string("bye")]);
    client.send(97, &[&number(theirs)]);
    assert_eq!(client.expect(97), number(7));
    let mut rest = String::new();
    (&visitor).read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye");
    // One that is not taken.
    let refused = TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
    let theirs = number_at(&client.expect(90), head.len());
    client.send(92, &[&number(theirs), &number(1), &string("no"), &string("")]);
    assert_eq!((&refused).read(&mut [0]).unwrap(), 0, "closed");
    client.works(8);
    stock.assert_logins(1);
}

#[test]
fn what_breaks_the_protocol_ends_its_own_client_only() {
    let stock = Stock::new(server());
    let mut bystander = Proxy::new(&stock);
    let before = stock.home.descriptors();
    let open = [&string("session")[..], &number(0), &number(0)].concat();
    let cases: [(u8, Vec<u8>); 9] = [
        (94, join(&[&number(77), &string("nobody's")])),
        (94, join(&[&number(0), &number(9)])),
        (93, join(&[&number(0), &number(u32::MAX)])),
        (91, join(&[&number(0), &number(0), &number(0), &number(1)])),
        (90, join(&[&open, &number(0)])),
        (90, Vec::new()),
        (99, number(0).to_vec()),
        (20, Vec::new()),
        (94, join(&[&number(0), &string(&"x".repeat(32769))])),
    ];
    for (kind, body) in cases {
        let mut client = Proxy::new(&stock);
        assert_eq!(client.open(SESSION, 0, 1, &[]), 0);
        client.send(kind, &[&body]);
        assert!(is_closed(&mut client.stream), "{kind} {body:?}");
        // Sessions that the server has not closed yet count for its limit, beyond which there is a second connection.
        wait_until("its session is gone", || stock.home.sessions() == 0);
    }
    // More than the window, to a command that reads nothing.
    let mut client = Proxy::new(&stock);
    let channel = client.run(1, 0, "exec sleep 100");
    let piece = [
        &number(32768 + 10)[..],
        &[0, 94],
        &number(channel),
        &string(&"x".repeat(32768)),
    ]
    .concat();
    let flood: Vec<u8> = piece.repeat(600);
    // It may be gone before all of it is written.
    let _ = client.stream.write_all(&flood);
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    // Raw nonsense.
    for bytes in [
        &[0xff; 64][..],
        &[0, 0, 0, 0],
        &[0, 0, 0, 1, 0],
        &[0, 0, 0, 2, 4, 97],
        b"GET / HTTP/1.0\r\n\r\n",
    ] {
        let mut client = Proxy::new(&stock);
        client.stream.write_all(bytes).unwrap();
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_closed(&mut client.stream), "{bytes:?}");
    }
    bystander.works(1);
    drop(client);
    stock.home.wait_for_descriptors(&before);
    stock.assert_logins(1);
}

/// As sshd, which notes them down and continues.
#[test]
fn late_messages_about_a_closed_channel_are_ignored() {
    let stock = Stock::new(server());
    let mut client = Proxy::new(&stock);
    let channel = client.open(SESSION, 0, 1 << 20, &[]);
    client.send(97, &[&number(channel)]);
    client.expect(97);
    for (kind, body) in [
        (93, join(&[&number(channel), &number(1)])),
        (94, join(&[&number(channel), &string("late")])),
        (96, number(channel).to_vec()),
        (97, number(channel).to_vec()),
    ] {
        client.send(kind, &[&body]);
    }
    client.works(1);
}

#[test]
fn a_client_that_reads_nothing_holds_up_nobody() {
    let stock = Stock::new(server());
    let mut rude = Proxy::new(&stock);
    let numbers = [0, 1, 2].map(|channel| rude.open(SESSION, channel, u32::MAX, &[]));
    for number in numbers {
        rude.ask(number, "exec", false, &string("cat /dev/zero"));
    }
    let mut other = Proxy::new(&stock);
    for channel in 0..3 {
        other.works(channel);
        stock.warm();
    }
}
