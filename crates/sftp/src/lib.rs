//! The client side of SFTP version 3 as a state machine: bytes and time go in, bytes and events come out.
//!
//! This crate has no socket, clock, thread or environment. It speaks the protocol of draft-ietf-secsh-filexfer-02 as
//! OpenSSH does (OpenSSH's PROTOCOL, section 4), over any stream of bytes: usually a session channel with the `sftp`
//! subsystem.
//!
//! - [`Client`] is one SFTP session: any number of [`Request`]s in flight, replies in any order.
//! - [`transfer`] plans work with it: [`Download`](transfer::Download) and [`Upload`](transfer::Upload) of one large
//!   file over one or several sessions, [`ManyDownload`](transfer::ManyDownload) and
//!   [`ManyUpload`](transfer::ManyUpload) of many small ones, and [`Walk`](transfer::Walk) through a tree.
//! - [`bridge`] stands between another program's client and the server, and carries its session over to new
//!   connections.
//!
//! Paths and names are bytes, never `String`, because a server's file system promises no encoding.
//!
//! ```
//! use bytes::Bytes;
//! use trunkline_sftp::{Client, Config, Request};
//!
//! let mut client = Client::new(&Config::default());
//! let id = client.request(Request::Stat { path: Bytes::from_static(b"/etc/motd") });
//! while let Some(bytes) = client.poll_transmit() {
//!     // write `bytes` to the channel
//! #   let _ = bytes;
//! }
//! // for bytes from the channel: client.handle_bytes(bytes)?, then
//! while let Some((answered, outcome)) = client.poll_event() {
//!     assert_eq!(answered, id);
//!     println!("{outcome:?}");
//! }
//! ```

#![warn(missing_docs)]

mod attributes;
pub mod bridge;
mod client;
mod data;
mod error;
mod extension;
mod packet;
mod reply;
mod request;
mod status;
pub mod transfer;

pub use attributes::{FileAttributes, FileType, Owner, Permissions, Times};
pub use client::{Client, Config, RequestId};
pub use data::Data;
pub use error::Error;
pub use extension::{Extensions, Limits, Names, StatVfs};
pub use reply::{DirEntry, Handle, Outcome, Reply};
pub use request::{OpenFlags, Request};
pub use status::{Status, StatusCode};
