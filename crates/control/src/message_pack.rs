//! MessagePack, decoded strictly as the requested type. rmp-serde generates code for every type to handle any value;
//! for those of the control protocol that is half a megabyte, an eighth of the client.

use std::fmt;

use rmp::Marker;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Visitor};

/// The reason why bytes are not valid for a type.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(String);

impl de::Error for Malformed {
    fn custom<T: fmt::Display>(words: T) -> Self {
        Self(words.to_string())
    }
}

type Result<T> = std::result::Result<T, Malformed>;

/// Decodes a value, which must be all of the bytes.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut reader = Reader {
        rest: bytes,
        depth: 0,
    };
    let value = T::deserialize(&mut reader)?;
    match reader.rest {
        [] => Ok(value),
        _ => Err(wrong("something is behind the value")),
    }
}

/// The maximum depth of nested values, since each level uses stack. A frame of the protocol has eight.
const MAX_DEPTH: usize = 64;

/// The part that is not generic, so that it is compiled only once.
struct Reader<'de> {
    rest: &'de [u8],
    depth: usize,
}

enum Number {
    Unsigned(u64),
    Signed(i64),
}

fn wrong(words: &str) -> Malformed {
    Malformed(words.to_owned())
}

fn unexpected_marker(marker: Marker, wanted: &str) -> Malformed {
    Malformed(format!("{marker:?} stands where {wanted} should"))
}

impl<'de> Reader<'de> {
    fn take(&mut self, len: usize) -> Result<&'de [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| wrong("it ends in the middle of a value"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        taken
            .try_into()
            .map_err(|_| wrong("it ends in the middle of a value"))
    }

    fn marker(&mut self) -> Result<Marker> {
        Ok(Marker::from_u8(self.array::<1>()?[0]))
    }

    fn take_marker(&mut self, marker: Marker) -> bool {
        match self.rest.split_first() {
            Some((first, rest)) if *first == marker.to_u8() => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// Reads a length of `width` bytes.
    fn length(&mut self, width: usize) -> Result<usize> {
        let bytes = self.take(width)?;
        Ok(bytes
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn number(&mut self) -> Result<Number> {
        use Number::{Signed, Unsigned};
        Ok(match self.marker()? {
            Marker::FixPos(number) => Unsigned(number.into()),
            Marker::FixNeg(number) => Signed(number.into()),
            Marker::U8 => Unsigned(u8::from_be_bytes(self.array()?).into()),
            Marker::U16 => Unsigned(u16::from_be_bytes(self.array()?).into()),
            Marker::U32 => Unsigned(u32::from_be_bytes(self.array()?).into()),
            Marker::U64 => Unsigned(u64::from_be_bytes(self.array()?)),
            Marker::I8 => Signed(i8::from_be_bytes(self.array()?).into()),
            Marker::I16 => Signed(i16::from_be_bytes(self.array()?).into()),
            Marker::I32 => Signed(i32::from_be_bytes(self.array()?).into()),
            Marker::I64 => Signed(i64::from_be_bytes(self.array()?)),
            other => return Err(unexpected_marker(other, "an integer")),
        })
    }

    fn float(&mut self) -> Result<f64> {
        match self.marker()? {
            Marker::F32 => Ok(f32::from_be_bytes(self.array()?).into()),
            Marker::F64 => Ok(f64::from_be_bytes(self.array()?)),
            other => Err(unexpected_marker(other, "a number with a fraction")),
        }
    }

    fn bool(&mut self) -> Result<bool> {
        match self.marker()? {
            Marker::True => Ok(true),
            Marker::False => Ok(false),
            other => Err(unexpected_marker(other, "true or false")),
        }
    }

    fn null(&mut self) -> Result<()> {
        match self.marker()? {
            // A struct without fields, which may be encoded either way.
            Marker::Null | Marker::FixArray(0) => Ok(()),
            other => Err(unexpected_marker(other, "nothing")),
        }
    }

    fn text(&mut self) -> Result<&'de str> {
        let length = match self.marker()? {
            Marker::FixStr(length) => length.into(),
            Marker::Str8 => self.length(1)?,
            Marker::Str16 => self.length(2)?,
            Marker::Str32 => self.length(4)?,
            other => return Err(unexpected_marker(other, "text")),
        };
        std::str::from_utf8(self.take(length)?).map_err(|_| wrong("text is not UTF-8"))
    }

    fn bytes(&mut self) -> Result<&'de [u8]> {
        let length = match self.marker()? {
            Marker::Bin8 => self.length(1)?,
            Marker::Bin16 => self.length(2)?,
            Marker::Bin32 => self.length(4)?,
            other => return Err(unexpected_marker(other, "bytes")),
        };
        self.take(length)
    }

    /// Returns the number of values in a list that begins with this marker.
    fn list(&mut self, marker: Marker) -> Result<usize> {
        match marker {
            Marker::FixArray(length) => Ok(length.into()),
            Marker::Array16 => self.length(2),
            Marker::Array32 => self.length(4),
            other => Err(unexpected_marker(other, "a list")),
        }
    }

    /// Returns the number of entries in a map that begins with this marker.
    fn map(&mut self, marker: Marker) -> Result<usize> {
        match marker {
            Marker::FixMap(length) => Ok(length.into()),
            Marker::Map16 => self.length(2),
            Marker::Map32 => self.length(4),
            other => Err(unexpected_marker(other, "a map")),
        }
    }

    /// Skips a value of any kind.
    fn skip(&mut self) -> Result<()> {
        let mut values: u64 = 1;
        while values > 0 {
            values -= 1;
            let marker = self.marker()?;
            let bytes = match marker {
                Marker::Null | Marker::True | Marker::False | Marker::FixPos(_) | Marker::FixNeg(_) => 0,
                Marker::U8 | Marker::I8 => 1,
                Marker::U16 | Marker::I16 => 2,
                Marker::U32 | Marker::I32 | Marker::F32 => 4,
                Marker::U64 | Marker::I64 | Marker::F64 => 8,
                Marker::FixStr(length) => length.into(),
                Marker::Str8 | Marker::Bin8 => self.length(1)?,
                Marker::Str16 | Marker::Bin16 => self.length(2)?,
                Marker::Str32 | Marker::Bin32 => self.length(4)?,
                Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                    values += self.list(marker)? as u64;
                    0
                }
                Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                    values += 2 * self.map(marker)? as u64;
                    0
                }
                other => return Err(unexpected_marker(other, "a value")),
            };
            self.take(bytes)?;
        }
        Ok(())
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(wrong("values lie too deep in one another"));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// Lets a visitor read `count` values, all of which it must take.
    fn all<T>(&mut self, count: usize, visit: impl FnOnce(&mut Values<'_, 'de>) -> Result<T>) -> Result<T> {
        self.deeper(|reader| {
            let mut values = Values { reader, left: count };
            let taken = visit(&mut values)?;
            match values.left {
                0 => Ok(taken),
                more => Err(Malformed(format!("{more} values too many"))),
            }
        })
    }
}

/// The remaining values of a list or a map.
struct Values<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
}

impl<'de> Values<'_, 'de> {
    fn next<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    /// Limits the hint to the rest of the bytes: each value takes at least one.
    fn hint(&self) -> Option<usize> {
        Some(self.left.min(self.reader.rest.len()))
    }
}

impl<'de> de::SeqAccess<'de> for &mut Values<'_, 'de> {
    type Error = Malformed;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        self.next(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.hint()
    }
}

impl<'de> de::MapAccess<'de> for &mut Values<'_, 'de> {
    type Error = Malformed;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        self.next(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        seed.deserialize(&mut *self.reader)
    }

    fn size_hint(&self) -> Option<usize> {
        self.hint()
    }
}

/// A variant, whose name comes next.
struct Variant<'a, 'de> {
    reader: &'a mut Reader<'de>,
    has_content: bool,
}

impl<'a, 'de> Variant<'a, 'de> {
    fn content(self) -> Result<&'a mut Reader<'de>> {
        match self.has_content {
            true => Ok(self.reader),
            false => Err(wrong("a variant lacks its content")),
        }
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = Malformed;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self)> {
        let name = seed.deserialize(&mut *self.reader)?;
        Ok((name, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = Malformed;

    fn unit_variant(self) -> Result<()> {
        match self.has_content {
            true => self.reader.null(),
            false => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        seed.deserialize(self.content()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        de::Deserializer::deserialize_tuple(self.content()?, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        de::Deserializer::deserialize_struct(self.content()?, "", fields, visitor)
    }
}

macro_rules! integers {
    ($($name:ident)*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.number()? {
                Number::Unsigned(number) => visitor.visit_u64(number),
                Number::Signed(number) => visitor.visit_i64(number),
            }
        })*
    };
}

macro_rules! reads {
    ($($name:ident: $read:ident, $visit:ident;)*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            visitor.$visit(self.$read()?)
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de> {
    type Error = Malformed;

    integers! {
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
    }

    reads! {
        deserialize_bool: bool, visit_bool;
        deserialize_f32: float, visit_f64;
        deserialize_f64: float, visit_f64;
        deserialize_char: text, visit_borrowed_str;
        deserialize_str: text, visit_borrowed_str;
        deserialize_string: text, visit_borrowed_str;
        deserialize_identifier: text, visit_borrowed_str;
        deserialize_bytes: bytes, visit_borrowed_bytes;
        deserialize_byte_buf: bytes, visit_borrowed_bytes;
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.take_marker(Marker::Null) {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.null()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let marker = self.marker()?;
        let count = self.list(marker)?;
        self.all(count, |values| visitor.visit_seq(values))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let marker = self.marker()?;
        let count = self.map(marker)?;
        self.all(count, |values| visitor.visit_map(values))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        // With content, it is a map of one entry whose key is the variant's name.
        let has_content = self.take_marker(Marker::FixMap(1));
        self.deeper(|reader| visitor.visit_enum(Variant { reader, has_content }))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(wrong("nothing in the protocol may be of any type"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::time::{Duration, SystemTime};

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Kind {
        Nothing,
        One(i64),
        Both(String, Option<bool>),
        Named { number: u8, inner: Box<Option<Kind>> },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Marked;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Many {
        numbers: Vec<i64>,
        large: u64,
        part: f64,
        letter: char,
        path: PathBuf,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        map: BTreeMap<u32, (Kind, ())>,
        time: Duration,
        moment: SystemTime,
        address: std::net::IpAddr,
        marked: Marked,
        #[serde(default)]
        missing: Option<String>,
    }

    fn write_value(value: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut serializer = rmp_serde::Serializer::new(&mut bytes)
            .with_struct_map()
            .with_human_readable();
        value.serialize(&mut serializer).unwrap();
        bytes
    }

    fn many() -> Many {
        let edges = [
            0,
            1,
            127,
            128,
            255,
            256,
            65_535,
            65_536,
            u32::MAX.into(),
            i64::MAX,
        ];
        let deep = Kind::Named {
            number: 200,
            inner: Box::new(Some(Kind::Both("x".repeat(300), None))),
        };
        Many {
            numbers: edges.iter().flat_map(|edge| [*edge, -edge, -edge - 1]).collect(),
            large: u64::MAX,
            part: -0.5,
            letter: 'é',
            path: "/tmp/ü".into(),
            bytes: vec![0xc1; 70_000],
            map: (0..20)
                .map(|n| (n * n * n * n * n * n, (deep.clone(), ())))
                .chain([(1 << 31, (Kind::Nothing, ())), (3, (Kind::One(-7), ()))])
                .collect(),
            time: Duration::new(3, 4),
            moment: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            address: "2001:db8::1".parse().unwrap(),
            marked: Marked,
            missing: Some(String::new()),
        }
    }

    #[test]
    fn what_rmp_serde_writes_is_read() {
        let bytes = write_value(&many());
        assert_eq!(from_slice::<Many>(&bytes).unwrap(), many());
        // A reader that knows none of the fields skips them all.
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Other {
            #[serde(default)]
            new: Option<u8>,
        }
        assert_eq!(from_slice::<Other>(&bytes).unwrap(), Other { new: None });
    }

    #[test]
    fn what_is_cut_off_or_goes_on_is_refused() {
        let mut bytes = write_value(&many());
        // Every length, except for most within the long strings.
        for len in (0..bytes.len()).filter(|len| len % 97 == 0 || *len < 500 || *len > bytes.len() - 500) {
            assert!(from_slice::<Many>(&bytes[..len]).is_err(), "{len}");
            assert!(from_slice::<de::IgnoredAny>(&bytes[..len]).is_err(), "{len}");
        }
        bytes.push(0xc0);
        assert_eq!(
            from_slice::<Many>(&bytes).unwrap_err().to_string(),
            "something is behind the value"
        );
    }

    #[test]
    fn another_type_is_refused_and_named() {
        let refused = |bytes: &[u8], words: &str| {
            assert_eq!(from_slice::<Kind>(bytes).unwrap_err().to_string(), words);
        };
        refused(&write_value(&7), "FixPos(7) stands where text should");
        refused(&write_value(&"One"), "a variant lacks its content");
        refused(
            &write_value(&BTreeMap::from([("One", "text")])),
            "FixStr(4) stands where an integer should",
        );
        refused(
            &write_value(&BTreeMap::from([("Both", ("a", true, true))])),
            "1 values too many",
        );
        refused(
            &write_value(&BTreeMap::from([("Nothing", 1)])),
            "FixPos(1) stands where nothing should",
        );
        let other = from_slice::<Kind>(&write_value(&"Other"))
            .unwrap_err()
            .to_string();
        assert!(other.starts_with("unknown variant `Other`"), "{other}");
        assert!(from_slice::<u8>(&write_value(&256)).is_err());
        assert!(from_slice::<u8>(&write_value(&-1)).is_err());
    }

    #[test]
    fn depth_and_announced_lengths_are_bounded() {
        #[derive(Debug, Deserialize)]
        struct Nested(#[allow(dead_code)] Vec<Nested>);
        let nested = |depth: usize| [vec![0x91; depth], vec![0x90]].concat();
        assert!(from_slice::<Nested>(&nested(MAX_DEPTH - 1)).is_ok());
        let deep = from_slice::<Nested>(&nested(100_000)).unwrap_err();
        assert_eq!(deep.to_string(), "values lie too deep in one another");
        // Announces four thousand million values, but none follows.
        for announced in [[0xdd, 0xff, 0xff, 0xff, 0xff], [0xdf, 0xff, 0xff, 0xff, 0xff]] {
            assert!(from_slice::<Vec<u64>>(&announced).is_err());
            assert!(from_slice::<BTreeMap<u64, u64>>(&announced).is_err());
            assert!(from_slice::<de::IgnoredAny>(&announced).is_err());
        }
    }
}
