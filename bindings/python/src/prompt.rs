//! Questions of the engine, answered by a Python callable.

use std::sync::Arc;

use pyo3::prelude::*;
use trunkline::Interaction;
use trunkline::prompt::{Answer, Place, Prompt, PromptKind, Prompter, Turn};

/// Asks a callable `(kind, text, echo) -> str | None`. One that raises has no answer; what it raised goes to
/// `sys.unraisablehook`, because no Python code is waiting in the thread that asks.
struct Callable(Arc<Py<PyAny>>);

impl Prompter for Callable {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        let callable = self.0.clone();
        let (kind, text, echo) = (
            name(prompt.kind),
            prompt.text_with_host().into_owned(),
            prompt.echo,
        );
        let place = Place::Function(callable.as_ptr() as usize);
        Box::pin(async move {
            // Hosts that are connected to at the same time ask through one callable: it asks one person.
            let _turn = Turn::at(place).await;
            // Python may block: on the GIL, or because it asks a person.
            let answered = tokio::task::spawn_blocking(move || {
                Python::attach(|py| {
                    let answer = callable
                        .bind(py)
                        .call1((kind, text, echo))
                        .and_then(|answer| answer.extract::<Option<String>>());
                    answer.unwrap_or_else(|error| {
                        error.write_unraisable(py, Some(callable.bind(py)));
                        None
                    })
                })
            });
            answered.await.ok().flatten().map(Into::into)
        })
    }
}

/// The words of the control protocol.
fn name(kind: PromptKind) -> &'static str {
    match kind {
        PromptKind::Passphrase => "passphrase",
        PromptKind::Password => "password",
        PromptKind::HostKey => "host key",
        PromptKind::KeyboardInteractive => "keyboard-interactive",
        _ => "confirm",
    }
}

/// Who answers: `ask`, or nobody. Warnings and banners are logged.
pub(crate) fn interaction(ask: Option<Py<PyAny>>) -> Interaction {
    match ask {
        Some(ask) => Interaction::new(Arc::new(Callable(Arc::new(ask))), |text| {
            tracing::warn!("{}", text.trim_end());
        }),
        None => Interaction::none(),
    }
}
