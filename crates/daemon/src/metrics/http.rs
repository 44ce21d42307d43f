//! Metrics over HTTP: GET /metrics, and nothing else.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use super::Metrics;
use crate::claim::check_peer;
use crate::place::Place;

/// How long a client may take to make its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Clients at once. Others wait for their turn.
const CLIENTS: usize = 16;

/// Serves metrics until it is dropped: on the socket of `place`, and on a port of 127.0.0.1 unless it is 0. What cannot be
/// listened on is told in the log: connections are worth more than numbers about them.
pub(crate) async fn serve(metrics: Arc<Metrics>, place: Place, port: u16) {
    tokio::join!(on_socket(&metrics, &place), async {
        if port != 0 {
            on_port(&metrics, port).await;
        }
    });
}

async fn on_socket(metrics: &Arc<Metrics>, place: &Place) {
    let path = place.metrics();
    // The daemon's lock is held: what is there is a dead daemon's.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).and_then(|listener| {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).map(|()| listener)
    });
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!("no metrics on {}: {error}", path.display()),
    };
    let accept = |cx: &mut Context<'_>| {
        let accepted = listener.poll_accept(cx);
        accepted.map_ok(|(stream, _)| check_peer(&stream).is_ok().then_some(stream))
    };
    answer_all(metrics, false, accept).await;
}

async fn on_port(metrics: &Arc<Metrics>, port: u16) {
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!("no metrics on port {port}: {error}"),
    };
    let accept = |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| Some(stream));
    answer_all(metrics, true, accept).await;
}

/// Answers the clients that `accept` brings: none for one that may not ask.
async fn answer_all<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    metrics: &Arc<Metrics>,
    checks_host: bool,
    accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<Option<S>>>,
) {
    let clients = Arc::new(Semaphore::new(CLIENTS));
    while let Ok(turn) = clients.clone().acquire_owned().await {
        match poll_fn(&accept).await {
            Ok(Some(stream)) => {
                let metrics = metrics.clone();
                tokio::spawn(async move {
                    answer(stream, metrics, checks_host).await;
                    drop(turn);
                });
            }
            Ok(None) => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Answers one client's request. `checks_host`: a page of another site, whose name was made to mean this machine, must not read
/// the names of hosts.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    metrics: Arc<Metrics>,
    checks_host: bool,
) {
    let service = service_fn(|request| {
        let response = respond(&request, &metrics, checks_host);
        async { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .keep_alive(false)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = tokio::time::timeout(2 * REQUEST_LIMIT, served).await {
        tracing::debug!("metrics: {error}");
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text";

fn respond(request: &Request<Incoming>, metrics: &Metrics, checks_host: bool) -> Response<Full<Bytes>> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    if checks_host && !host.is_some_and(is_this_machine) {
        return said(StatusCode::FORBIDDEN, "ask for 127.0.0.1 or localhost\n");
    }
    if request.uri().path() != "/metrics" {
        return said(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n");
        response
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let accepts = request
        .headers()
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let (text, kind) = if accepts.is_some_and(|accepts| accepts.contains(OPEN_METRICS)) {
        (
            metrics.open_metrics(),
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )
    } else {
        (metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
    };
    let mut response = said(StatusCode::OK, text);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

fn said(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}

/// Whether a Host header names this machine and not another name for its address.
fn is_this_machine(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "127.0.0.1" || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
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
}
