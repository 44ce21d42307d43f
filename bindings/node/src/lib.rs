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
mod runtime;
mod sftp;
mod stdio;
mod stream;

use napi::bindgen_prelude::{Buffer, Uint8Array};
use napi_derive::napi;
use serde_json::{Value, json};
use trunkline::config::Algorithms;
use trunkline::keys::{KeyError, KeyFile};
use trunkline_text::Printable;

/// A server's text without what a terminal would act on, for messages that are put together in JavaScript.
#[napi]
pub fn printable(text: String) -> String {
    Printable::text(text).into_string()
}

/// The names of the kinds of events, each at its number.
#[napi]
pub fn kinds() -> Vec<&'static str> {
    outbox::Kind::NAMES.to_vec()
}

/// The algorithms that the engine has, best first, under ssh2's names for their lists.
#[napi]
pub fn algorithms() -> Value {
    let Algorithms {
        kex,
        host_key,
        cipher,
        mac,
        compression,
    } = Algorithms::all_supported();
    json!({ "kex": kex, "serverHostKey": host_key, "cipher": cipher, "hmac": mac, "compress": compression })
}

/// Returns the counts for all environments of the process: their queues, and the chunks that they have.
#[napi]
pub fn alive() -> Vec<u32> {
    vec![outbox::Outbox::count(), block::lent_blocks()]
}

/// Whether a private key, in any of OpenSSH's and PEM's formats, has a passphrase.
///
/// # Errors
/// It is malformed; in ssh2's words, which programs compare.
#[napi]
pub fn is_sealed(content: Uint8Array) -> napi::Result<bool> {
    Ok(key_file(content.to_vec()).map_err(not_opened)?.is_encrypted())
}

/// A private key, opened: its fields as SSH_AGENTC_ADD_IDENTITY has them, then the comment, as a string.
///
/// # Errors
/// In ssh2's words, which programs compare.
#[napi]
pub fn open_key(content: Uint8Array, passphrase: Option<String>) -> napi::Result<Buffer> {
    let opened = opened_key(content.to_vec(), passphrase.as_deref()).map_err(not_opened)?;
    Ok(opened.into())
}

fn key_file(content: Vec<u8>) -> Result<KeyFile, KeyError> {
    KeyFile::in_memory("privateKey", content.into())
}

/// Returns the result of [`open_key`]. A passphrase takes some tenths of a second, for bcrypt.
fn opened_key(content: Vec<u8>, passphrase: Option<&str>) -> Result<Vec<u8>, KeyError> {
    let key = key_file(content)?.unlock(passphrase, 0)?;
    let mut opened = key.agent_encoding(None).to_vec();
    let comment = key.public_key().comment.as_bytes();
    opened.extend(u32::try_from(comment.len()).unwrap_or_default().to_be_bytes());
    opened.extend(comment);
    Ok(opened)
}

fn not_opened(error: KeyError) -> napi::Error {
    napi::Error::from_reason(words(&error))
}

/// ssh2's, for an error.
fn words(error: &KeyError) -> String {
    match error {
        KeyError::PassphraseNeeded { .. } => {
            "Encrypted private OpenSSH key detected, but no passphrase given".to_owned()
        }
        KeyError::WrongPassphrase { .. } => {
            "OpenSSH key integrity check failed -- bad passphrase?".to_owned()
        }
        KeyError::Malformed { .. } => "Malformed OpenSSH private key".to_owned(),
        error => error.to_string(),
    }
}
