//! JSON of clients: no field twice, nothing that a configuration has no form for, nothing nested without end.

use super::limits::DEPTH_MAX;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Reads a body.
///
/// # Errors
/// It is not JSON, has a field twice, or is nested too deep; the text says where.
pub(super) fn read(body: &[u8]) -> Result<Value, String> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Strict(0).deserialize(&mut reader).map_err(|error| format!("the body is not right: {error}"))?;
    reader.end().map_err(|error| format!("the body does not end with its value: {error}"))?;
    Ok(value)
}

/// A value at this depth.
#[derive(Clone, Copy)]
struct Strict(usize);

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Strict {
    fn deeper<E: Error>(self) -> Result<Strict, E> {
        if self.0 >= DEPTH_MAX {
            return Err(E::custom(format!("more than {DEPTH_MAX} objects and lists are in each other")));
        }
        Ok(Strict(self.0 + 1))
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let deeper = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(deeper)? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let deeper = self.deeper()?;
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = access.next_value_seed(deeper)?;
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("the field `{name}` stands there twice")));
            }
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_strict_json() {
        let right = r#" {"a": [1, -2, 0.5, "x", true, null], "b": {"a": {}}} "#;
        assert_eq!(read(right.as_bytes()).unwrap(), serde_json::from_str::<Value>(right).unwrap());
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(nested(DEPTH_MAX).as_bytes()).is_ok());
        for (wrong, why) in [
            ("", "EOF"),
            ("{", "EOF"),
            ("{}{}", "does not end"),
            (r#"{"a": 1, "b": {"c": 1, "c": 2}}"#, "`c` stands there twice"),
            (&nested(DEPTH_MAX + 1), "in each other"),
            (&nested(100_000), "in each other"),
            ("\"\u{1}\"", "control character"),
        ] {
            let said = read(wrong.as_bytes()).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        assert!(read(b"\"\xff\"").is_err());
    }
}
