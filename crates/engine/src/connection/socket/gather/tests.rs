use super::*;

const MIB: u64 = 1024 * 1024;
const PACKET: u64 = 32 * 1024;
const MS: Duration = Duration::from_millis(1);

/// Receives `bytes` in packets at `rate` bytes per second. Returns whether gathering began, and the time.
fn burst(rhythm: &mut Rhythm, bytes: u64, rate: u64, mut now: Instant) -> (bool, Instant) {
    for _ in 0..bytes / PACKET {
        now += Duration::from_nanos(PACKET * 1_000_000_000 / rate);
        if rhythm.is_burst(PACKET, now) {
            return (true, now);
        }
    }
    (false, now)
}

#[test]
fn output_is_gathered_at_a_lower_rate_and_for_longer_than_answers() {
    let mut now = Instant::now();
    let mut rhythm = Rhythm::new(now);
    rhythm.asked = Some(now);
    let (gathers, later) = burst(&mut rhythm, 2 * OUTPUT.burst, 20 * MIB, now);
    assert!(!gathers);
    assert_eq!(rhythm.patience(later), ANSWERS.patience);
    now = later + QUESTION;
    assert_eq!(rhythm.patience(now), OUTPUT.patience);
    let (gathers, _) = burst(&mut rhythm, 8 * OUTPUT.burst, 20 * MIB, now);
    assert!(gathers);
}

#[test]
fn what_comes_slowly_is_not_gathered() {
    let now = Instant::now();
    let (gathers, _) = burst(&mut Rhythm::new(now), 64 * MIB, 4 * MIB, now);
    assert!(!gathers);
}

#[test]
fn answers_that_never_come_together_are_waited_for_less_and_less() {
    let mut now = Instant::now();
    let mut rhythm = Rhythm::new(now);
    // A client that requests a piece when it has the one before: each wait is useless.
    let (mut received, mut waits) = (0, 0);
    while received < 1024 * MIB {
        rhythm.asked = Some(now);
        now += MS / 10;
        received += PACKET;
        if rhythm.is_burst(PACKET, now) {
            waits += 1;
            now += ANSWERS.patience;
            received += PACKET;
            assert!(!rhythm.goes_on(PACKET, now));
        }
    }
    assert!((1..20).contains(&waits), "{waits} waits");
}

#[test]
fn output_is_gathered_while_that_is_worth_it() {
    let now = Instant::now();
    let mut rhythm = Rhythm::new(now);
    assert!(rhythm.goes_on(LEAST, now));
    assert!(!rhythm.goes_on(LEAST - 1, now));
    assert_eq!(
        rhythm.burst, ANSWERS.burst,
        "the end of some output says nothing about answers"
    );
}

#[cfg(target_os = "linux")]
mod sockets {
    use std::io::{Read as _, Write as _};
    use std::thread::JoinHandle;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    /// Connects to a server that sends `bytes`, "end" at the first request, and closes at the second. The bytes count
    /// as a burst, however long they take.
    async fn connection(bytes: u64) -> (Gathering, JoinHandle<()>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let sent = std::io::copy(&mut std::io::repeat(7).take(bytes), &mut client).unwrap();
            assert_eq!(sent, bytes);
            client.read_exact(&mut [0]).unwrap();
            client.write_all(b"end").unwrap();
            client.read_exact(&mut [0]).unwrap();
        });
        let stream = Acknowledging::new(TcpStream::connect(address).await.unwrap());
        let mut gathering = Gathering::new(stream);
        gathering.rhythm.since = Instant::now() + Duration::from_secs(24 * 60 * 60);
        (gathering, server)
    }

    async fn read(connection: &mut Gathering, bytes: u64) {
        let mut buffer = vec![0; usize::try_from(bytes).unwrap()];
        connection.read_exact(&mut buffer).await.unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
    }

    fn is_gathering(connection: &Gathering) -> bool {
        matches!(connection.state, State::Gathering { .. })
    }

    /// Returns the timer of the current wait.
    fn timer(connection: &mut Gathering) -> Pin<&mut Sleep> {
        match &mut connection.state {
            State::Gathering { until, waiting: true } => until.as_mut(),
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether a reader has to wait.
    async fn waits_for(connection: &mut Gathering, bytes: &mut [u8]) -> bool {
        let mut reading = std::pin::pin!(connection.read(bytes));
        std::future::poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx).is_pending())).await
    }

    /// Reads data that arrives while the reader waits, and was not there when the wait began.
    async fn hear_the_end(connection: &mut Gathering) {
        let mut answer = [0; 3];
        assert!(waits_for(connection, &mut answer).await, "nothing was sent yet");
        connection.write_all(b"?").await.unwrap();
        connection.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"end");
    }

    #[tokio::test]
    async fn what_comes_alone_after_output_is_read_and_ends_the_gathering() {
        let (mut connection, server) = connection(OUTPUT.burst).await;
        read(&mut connection, OUTPUT.burst).await;
        assert!(is_gathering(&connection));
        hear_the_end(&mut connection).await;
        assert!(!is_gathering(&connection));
        connection.write_all(b"!").await.unwrap();
        server.join().unwrap();
    }

    #[tokio::test]
    async fn a_silence_is_told_from_data_that_is_gathered() {
        let (mut connection, server) = connection(OUTPUT.burst).await;
        assert!(connection.is_drained());
        read(&mut connection, OUTPUT.burst).await;
        assert!(waits_for(&mut connection, &mut [0]).await);
        assert!(!connection.is_drained());
        while !connection.is_drained() {
            let waiting = tokio::time::timeout(WAKING, connection.read(&mut [0])).await;
            assert!(waiting.is_err(), "nothing is sent meanwhile");
        }
        connection.write_all(b"?!").await.unwrap();
        server.join().unwrap();
    }

    #[tokio::test]
    async fn what_comes_alone_after_a_question_is_read_and_ends_the_gathering() {
        let (mut connection, server) = connection(OUTPUT.burst).await;
        read(&mut connection, OUTPUT.burst).await;
        // However long this takes.
        connection.rhythm.asked = Some(Instant::now() + Duration::from_secs(24 * 60 * 60));
        hear_the_end(&mut connection).await;
        assert!(!is_gathering(&connection));
        assert_eq!(connection.rhythm.burst, 2 * ANSWERS.burst);
        connection.write_all(b"!").await.unwrap();
        server.join().unwrap();
    }

    #[tokio::test]
    async fn a_question_shortens_the_wait_that_is_under_way() {
        let (mut connection, server) = connection(OUTPUT.burst).await;
        read(&mut connection, OUTPUT.burst).await;
        assert!(waits_for(&mut connection, &mut [0]).await);
        let late = tokio::time::Instant::now() + Duration::from_secs(24 * 60 * 60);
        timer(&mut connection).reset(late);
        connection.expect_reply();
        let soon = timer(&mut connection).deadline();
        assert!(soon < late);
        connection.expect_reply();
        assert_eq!(
            timer(&mut connection).deadline(),
            soon,
            "more questions make it no longer"
        );
        connection.write_all(b"?!").await.unwrap();
        server.join().unwrap();
    }

    #[tokio::test]
    async fn a_burst_is_gathered_whole() {
        let bytes = 40 * OUTPUT.burst + 12_345;
        let (mut connection, server) = connection(bytes).await;
        read(&mut connection, bytes).await;
        connection.write_all(b"?!").await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "end");
        server.join().unwrap();
    }
}
