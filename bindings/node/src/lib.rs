//! The private native module under the npm package `trunkline`: the engine on threads of its own, and one queue towards
//! each JavaScript environment.
//!
//! JavaScript has one `Hub` for each environment (the main thread, each worker). It asks through the hub's
//! methods, which return at once, and hears through `Hub::drain`: engine threads append what happens to
//! the hub's `Outbox` and wake the event loop once for whatever has come together by then.
//! `lib/native.d.ts` has the same interface in TypeScript.
//!
//! Nothing here runs on a thread of libuv's pool, and nothing blocks the event loop.

mod block;
mod client;
mod fault;
mod hub;
mod options;
mod outbox;
mod reach;
mod runtime;
mod sftp;
mod stdio;
mod stream;

use napi_derive::napi;
use trunkline_text::Printable;

/// A server's text without what a terminal would act on, for messages that are put together in JavaScript.
#[napi]
pub fn printable(text: String) -> String {
    Printable::text(text).into_string()
}
