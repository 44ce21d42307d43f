//! Values on their way from and to Python.

use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Pieces that become one `bytes`, copied once.
#[derive(Debug, Default)]
pub(crate) struct Data(Vec<Bytes>);

impl Data {
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.0.push(piece);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub(crate) fn into_vec(self) -> Vec<u8> {
        self.0.concat()
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }
}

impl From<Vec<Bytes>> for Data {
    fn from(pieces: Vec<Bytes>) -> Self {
        Self(pieces)
    }
}

impl<'py> IntoPyObject<'py> for Data {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        PyBytes::new_with(py, self.len(), |buffer| {
            let mut rest = buffer;
            for piece in &self.0 {
                let (here, after) = rest.split_at_mut(piece.len());
                here.copy_from_slice(piece);
                rest = after;
            }
            Ok(())
        })
    }
}

/// A time limit in seconds.
///
/// # Errors
/// `ValueError` for what is negative, or no number.
pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let duration = seconds.map(Duration::try_from_secs_f64).transpose();
    duration.map_err(|error| PyValueError::new_err(format!("no time limit: {error}")))
}
