//! Platform strings as byte strings, for serde's `with`.
//!
//! Serde itself refuses a path that is not UTF-8, and writes an [`OsString`] as an array of numbers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use serde::{Deserialize as _, Deserializer, Serializer};
use serde_bytes::ByteBuf;

/// Writes a path or another platform string.
///
/// # Errors
/// The serializer's.
pub fn serialize<T: AsRef<OsStr>, S: Serializer>(text: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(text.as_ref().as_bytes())
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
/// The deserializer's: it is something other than a byte string.
pub fn deserialize<'de, T: From<OsString>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    ByteBuf::deserialize(deserializer).map(|bytes| text(bytes).into())
}

fn text(bytes: ByteBuf) -> OsString {
    OsString::from_vec(bytes.into_vec())
}

/// The same for a list of strings.
pub mod list {
    use serde_bytes::Bytes;

    use super::*;

    /// Writes the strings.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(list: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|item| Bytes::new(item.as_bytes())))
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
        let list = Vec::<ByteBuf>::deserialize(deserializer)?;
        Ok(list.into_iter().map(text).collect())
    }
}

/// The same for an optional string.
pub mod option {
    use serde::Serialize as _;
    use serde_bytes::Bytes;

    use super::*;

    /// Writes the string.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(text: &Option<OsString>, serializer: S) -> Result<S::Ok, S::Error> {
        text.as_ref()
            .map(|text| Bytes::new(text.as_bytes()))
            .serialize(serializer)
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OsString>, D::Error> {
        Ok(Option::<ByteBuf>::deserialize(deserializer)?.map(text))
    }
}

/// The same for an environment.
pub mod map {
    use std::collections::BTreeMap;

    use serde_bytes::Bytes;

    use super::*;

    /// Writes names and values.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(
        map: &BTreeMap<OsString, OsString>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            map.iter()
                .map(|(name, value)| (Bytes::new(name.as_bytes()), Bytes::new(value.as_bytes()))),
        )
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<OsString, OsString>, D::Error> {
        let map = BTreeMap::<ByteBuf, ByteBuf>::deserialize(deserializer)?;
        Ok(map
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect())
    }
}
