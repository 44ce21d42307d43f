//! Metrics for Prometheus: GET /metrics, and nothing else.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, HOST};
use hyper::{Method, Request, Response, StatusCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::{Body, other_method, response};

/// Clients at once.
const CLIENTS: usize = 16;
/// The time limit for the whole exchange.
const LIMIT: Duration = Duration::from_secs(20);

/// A source of metrics.
pub trait Metrics: Send + Sync + 'static {
    /// All of them.
    fn registry(&self) -> &Registry;

    /// Their values at this moment, as OpenMetrics text.
    fn open_metrics(&self) -> String {
        let mut text = String::new();
        // Writing to a String fails only where an encoder does, which is a mistake of ours: what was written is right.
        if let Err(error) = encode(&mut text, self.registry()) {
            tracing::warn!("metrics: {error}");
        }
        text
    }

    /// The same as Prometheus' own text, which node_exporter reads from files.
    fn text(&self) -> String {
        prometheus_text(&self.open_metrics())
    }
}

/// Serves metrics until it is dropped: to this user on a socket, where there is one, and on a port of 127.0.0.1 unless it is
/// 0. A port that cannot be listened on is told in the log: the work is worth more than numbers about it.
pub async fn serve(metrics: Arc<dyn Metrics>, socket: Option<UnixListener>, port: u16) {
    let on_socket = async {
        if let Some(listener) = socket {
            on_socket(&metrics, listener).await;
        }
    };
    tokio::join!(on_socket, async {
        if port != 0 {
            on_port(&metrics, port).await;
        }
    });
}

async fn on_socket(metrics: &Arc<dyn Metrics>, listener: UnixListener) {
    let accept = |cx: &mut Context<'_>| {
        let accepted = listener.poll_accept(cx);
        accepted.map_ok(|(stream, _)| is_ours(&stream).then_some(stream))
    };
    let metrics = metrics.clone();
    let respond = move |request: &Request<Incoming>| respond(request, &*metrics, false);
    crate::serve(accept, CLIENTS, Some(LIMIT), respond).await;
}

async fn on_port(metrics: &Arc<dyn Metrics>, port: u16) {
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!("no metrics on port {port}: {error}"),
    };
    let accept = |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| Some(stream));
    let metrics = metrics.clone();
    let respond = move |request: &Request<Incoming>| respond(request, &*metrics, true);
    crate::serve(accept, CLIENTS, Some(LIMIT), respond).await;
}

fn is_ours(stream: &UnixStream) -> bool {
    let peer = stream.peer_cred();
    peer.is_ok_and(|peer| peer.uid() == rustix::process::getuid().as_raw())
}

const OPEN_METRICS: &str = "application/openmetrics-text";

/// `checks_host`: a page of another site, whose name was made to mean this machine, must not read the names of hosts.
fn respond(request: &Request<Incoming>, metrics: &dyn Metrics, checks_host: bool) -> Response<Body> {
    let plain = |status, words: &'static str| response(status, "text/plain", words);
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    if checks_host && !host.is_some_and(is_this_machine) {
        return plain(StatusCode::FORBIDDEN, "ask for 127.0.0.1 or localhost\n");
    }
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return other_method("GET, HEAD");
    }
    let accepts = request
        .headers()
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    if accepts.is_some_and(|accepts| accepts.contains(OPEN_METRICS)) {
        let kind = format!("{OPEN_METRICS}; version=1.0.0");
        response(StatusCode::OK, &kind, metrics.open_metrics())
    } else {
        response(StatusCode::OK, "text/plain; version=0.0.4", metrics.text())
    }
}

/// Returns whether a Host header names this machine and not another name for its address.
fn is_this_machine(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "127.0.0.1" || name.eq_ignore_ascii_case("localhost")
}

/// OpenMetrics names a counter without the `_total` of its samples, and has lines that the older format has not.
fn prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    for line in open_metrics.lines() {
        let about = line
            .strip_prefix("# HELP ")
            .or_else(|| line.strip_prefix("# TYPE "));
        match about.and_then(|about| about.split_once(' ')) {
            Some((name, rest)) if counters.contains(&name) => {
                let _ = writeln!(text, "{} {name}_total {rest}", &line[..6]);
            }
            None if line.starts_with("# ") => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn other_names_for_this_machine_are_refused() {
        assert!(
            is_this_machine("127.0.0.1:9100")
                && is_this_machine("localhost")
                && is_this_machine("LocalHost:1")
        );
        assert!(!is_this_machine("evil.example:9100") && !is_this_machine("localhost.evil.example"));
    }

    #[test]
    fn counters_have_one_name_in_prometheus_own_text() {
        let open = "# HELP a_b Help.\n# TYPE a_b counter\n# UNIT a_b bytes\na_b_total{x=\"# TYPE\"} 1\n# HELP c C.\n\
                    # TYPE c gauge\nc 2\n# EOF\n";
        let text = "# HELP a_b_total Help.\n# TYPE a_b_total counter\na_b_total{x=\"# TYPE\"} 1\n# HELP c C.\n\
                    # TYPE c gauge\nc 2\n";
        assert_eq!(prometheus_text(open), text);
    }

    struct One(Registry);

    impl Metrics for One {
        fn registry(&self) -> &Registry {
            &self.0
        }
    }

    #[tokio::test]
    async fn the_socket_answers_one_path_by_two_methods() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("metrics.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut one = One(Registry::default());
        let gauge: Gauge = Gauge::default();
        gauge.set(2);
        one.0.register("c", "C", gauge);
        let serving = tokio::spawn(async move { serve(Arc::new(one), Some(listener), 0).await });
        let ask = async |request: &str| {
            let mut stream = UnixStream::connect(&socket).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ")
                && answer.ends_with("\r\n\r\n# HELP c C.\n# TYPE c gauge\nc 2\n")
        );
        let answer = ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let answer = ask("POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        serving.abort();
    }
}
