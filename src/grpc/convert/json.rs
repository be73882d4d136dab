//! JSON between the wire's `Value` and text: canonical, that is, keys sorted, no spaces, shortest numbers.

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::Value as Json;

/// Deeper values could not be told apart from an attack, and the wire format itself ends at about this depth.
const DEPTH_MAX: usize = 32;
/// From here on a double no longer tells neighbouring whole numbers apart.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;

/// What cannot be written, and where, from the root on: `.user.id`, `[3]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotJson {
    pub(super) path: String,
    pub(super) message: String,
}

pub(super) fn canonical(value: Value) -> Result<String, NotJson> {
    Ok(value_in(value, DEPTH_MAX)?.to_string())
}

pub(super) fn canonical_object(object: Struct) -> Result<String, NotJson> {
    canonical(Value { kind: Some(Kind::StructValue(object)) })
}

fn value_in(value: Value, depth: usize) -> Result<Json, NotJson> {
    Ok(match value.kind {
        None => return Err(refuse("has no value")),
        Some(Kind::NullValue(0)) => Json::Null,
        Some(Kind::NullValue(other)) => {
            return Err(refuse(format!("{other} is not a value that this server knows")));
        }
        Some(Kind::BoolValue(value)) => Json::Bool(value),
        Some(Kind::NumberValue(number)) => number_in(number)?,
        Some(Kind::StringValue(text)) => Json::String(text),
        Some(Kind::StructValue(object)) => {
            let depth = deeper(depth)?;
            // The fields come sorted.
            let fields = object.fields.into_iter().map(|(key, value)| match value_in(value, depth) {
                Ok(value) => Ok((key, value)),
                Err(problem) => Err(problem.under(&format!(".{key}"))),
            });
            Json::Object(fields.collect::<Result<_, _>>()?)
        }
        Some(Kind::ListValue(list)) => {
            let depth = deeper(depth)?;
            let values = list.values.into_iter().enumerate();
            let values =
                values.map(|(at, value)| value_in(value, depth).map_err(|problem| problem.under(&format!("[{at}]"))));
            Json::Array(values.collect::<Result<_, _>>()?)
        }
    })
}

fn number_in(number: f64) -> Result<Json, NotJson> {
    if !number.is_finite() {
        return Err(refuse(format!("{number} is not a JSON number")));
    }
    if number.abs() >= EXACT_BELOW {
        let message = format!("{number} is a whole number of 2^53 or more and may have been rounded");
        return Err(refuse(message));
    }
    Ok(if number.fract() == 0.0 { Json::from(number as i64) } else { Json::from(number) })
}

fn deeper(depth: usize) -> Result<usize, NotJson> {
    let message = || refuse(format!("nested more than {DEPTH_MAX} deep"));
    depth.checked_sub(1).ok_or_else(message)
}

fn refuse(message: impl Into<String>) -> NotJson {
    NotJson { path: String::new(), message: message.into() }
}

impl NotJson {
    fn under(mut self, step: &str) -> Self {
        self.path.insert_str(0, step);
        self
    }
}

/// An object that was kept as text. What is no object any more is shown as nothing.
pub(super) fn object_out(text: &str) -> Option<Struct> {
    serde_json::from_str(text).ok().map(struct_out)
}

fn struct_out(object: serde_json::Map<String, Json>) -> Struct {
    let fields = object.into_iter().map(|(key, value)| (key, value_out(value))).collect();
    Struct { fields }
}

fn value_out(value: Json) -> Value {
    let kind = match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(values) => Kind::ListValue(ListValue { values: values.into_iter().map(value_out).collect() }),
        Json::Object(object) => Kind::StructValue(struct_out(object)),
    };
    Value { kind: Some(kind) }
}
