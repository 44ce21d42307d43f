//! Questions of the engine, answered by a Python callable.

use std::sync::Arc;

use pyo3::prelude::*;
use trunkline::Interaction;
use trunkline::prompt::{Answer, Answerer, Answers, Place, Prompt, Prompter, ServerQuestions, Turn};

/// Asks a callable `(kind, text, echo) -> str | None`. One that raises has no answer; what it raised goes to
/// `sys.unraisablehook`, because no Python code is waiting in the thread that asks.
struct Callable {
    ask: Arc<Py<PyAny>>,
    /// Takes what a server asks at once: `(title, instructions, [(text, echo)]) -> [str] | None`.
    together: Option<Arc<Py<PyAny>>>,
    /// Its answers were given ahead: its attribute `at_hand` is true.
    at_hand: bool,
}

impl Prompter for Callable {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        let callable = self.ask.clone();
        let (kind, text, echo) = (
            prompt.kind.as_str(),
            prompt.text_with_host().into_owned(),
            prompt.echo,
        );
        let place = Place::Function(callable.as_ptr() as usize);
        Box::pin(async move {
            // Hosts that are connected to at the same time ask through one callable: it asks one person.
            let _turn = Turn::wait_for(place).await;
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

    fn ask_together<'a>(&'a self, asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        let callable = self.together.clone()?;
        let (name, instruction) = (asked.name.clone(), asked.instruction.clone());
        let prompts: Vec<_> = asked
            .prompts
            .iter()
            .map(|prompt| (prompt.text.clone(), prompt.echo))
            .collect();
        Some(Box::pin(async move {
            let answered = tokio::task::spawn_blocking(move || {
                Python::attach(|py| {
                    let answers = callable
                        .bind(py)
                        .call1((name, instruction, prompts))
                        .and_then(|answers| answers.extract::<Option<Vec<String>>>());
                    answers.unwrap_or_else(|error| {
                        error.write_unraisable(py, Some(callable.bind(py)));
                        None
                    })
                })
            });
            let answers = answered.await.ok().flatten()?;
            Some(answers.into_iter().map(Into::into).collect())
        }))
    }

    fn answerer(&self) -> Answerer {
        match self.at_hand {
            true => Answerer::Program,
            false => Answerer::Person,
        }
    }
}

/// Returns the answerer: `ask`, and `together` what a server asks at once; or nobody. Warnings and banners are logged.
pub(crate) fn interaction(ask: Option<Py<PyAny>>, together: Option<Py<PyAny>>) -> Interaction {
    match ask {
        Some(ask) => {
            let at_hand = Python::attach(|py| {
                let at_hand = ask.bind(py).getattr("at_hand");
                at_hand.and_then(|at_hand| at_hand.is_truthy()).unwrap_or(false)
            });
            let callable = Callable {
                at_hand,
                ask: Arc::new(ask),
                together: together.map(Arc::new),
            };
            Interaction::new(Arc::new(callable), |text| tracing::warn!("{}", text.trim_end()))
        }
        None => Interaction::none(),
    }
}
