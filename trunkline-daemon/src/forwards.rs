//! The forwardings of a session: those of ssh_config and of ssh's `-L`, `-R` and `-D`.

use trunkline::config::{ForwardTarget, Listen};
use trunkline::{Error, ForwardEvent, ForwardHandle, Host, Interaction};

/// Starts them all, once the host is connected. A forwarding that fails is told to the user and left out, or with
/// ExitOnForwardFailure is an error. They last as long as what is returned.
pub(crate) async fn start(host: &Host, interaction: &Interaction) -> Result<Vec<ForwardHandle>, Error> {
    let config = host.config();
    let mut handles = Vec::new();
    if config.local_forwards.is_empty()
        && config.remote_forwards.is_empty()
        && config.dynamic_forwards.is_empty()
    {
        return Ok(handles);
    }
    host.warm().await?;
    let mut keep = |result: Result<ForwardHandle, Error>| match result {
        Ok(handle) => {
            watch(&handle, interaction);
            handles.push(handle);
            Ok(())
        }
        Err(error) if config.exit_on_forward_failure => Err(error),
        Err(error) => {
            interaction.notice(&format!("Warning: {error}"));
            Ok(())
        }
    };
    for forward in &config.local_forwards {
        keep(host.forward_local(forward).await)?;
    }
    for listen in &config.dynamic_forwards {
        keep(host.forward_dynamic(listen).await)?;
    }
    for forward in &config.remote_forwards {
        let result = host.forward_remote(forward).await;
        if let (Ok(handle), Listen::Tcp { port: 0, .. }) = (&result, &forward.listen) {
            let target = match &forward.target {
                ForwardTarget::Tcp { host, port } => format!("{host}:{port}"),
                ForwardTarget::Socket(path) => path.display().to_string(),
                ForwardTarget::Socks => "SOCKS".into(),
            };
            let port = handle.port().unwrap_or_default();
            // ssh's words, which scripts look for.
            interaction.notice(&format!("Allocated port {port} for remote forward to {target}"));
        }
        keep(result)?;
    }
    Ok(handles)
}

/// Tells the user what happens to a forwarding while the session lasts.
fn watch(handle: &ForwardHandle, interaction: &Interaction) {
    let mut events = handle.events();
    let interaction = interaction.clone();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event {
                ForwardEvent::Refused { error, .. } => interaction.notice(&error.to_string()),
                ForwardEvent::Lost { error } => {
                    interaction.notice(&format!("a remote forwarding was lost: {error}"));
                }
                ForwardEvent::Established => interaction.notice("the remote forwarding stands again"),
                ForwardEvent::Failed { error } => {
                    interaction.notice(&format!("a remote forwarding has ended: {error}"));
                }
                _ => {}
            }
        }
    });
}
