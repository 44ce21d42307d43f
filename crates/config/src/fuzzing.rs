//! Entry points for the fuzz targets in `fuzz/` to code behind the public API. No part of the API.

use crate::agent::Agent;

/// Lets an agent answer a listing of its keys, a signature and a binding with the bytes `replies`.
pub fn agent(replies: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the system has room for a fuzz target");
    runtime.block_on(async {
        for request in 0..3 {
            let (ours, mut theirs) = tokio::net::UnixStream::pair().expect("as above");
            let mut agent = Agent::from_stream(ours);
            let asking = async {
                match request {
                    0 => drop(agent.identities().await),
                    1 => drop(agent.sign(b"key", "ssh-ed25519", b"data").await),
                    _ => drop(agent.bind_session(b"key", b"session", b"signature", false).await),
                }
            };
            let answering = async {
                use tokio::io::AsyncWriteExt as _;
                // An agent that sends more than the client reads finds its pipe closed.
                let _ = theirs.write_all(replies).await;
                let _ = theirs.shutdown().await;
                // The stream stays open until here, so that requests have a reader.
                theirs
            };
            tokio::join!(asking, answering);
        }
    });
}
