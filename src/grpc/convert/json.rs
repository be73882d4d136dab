//! JSON between the wire's `Value` and text: canonical, that is, keys sorted, no spaces, shortest numbers.

use prost_types::{ListValue, Struct, Value, value::Kind};

/// Deeper values could not be told apart from an attack, and the wire format itself ends at about this depth.
pub(super) const DEPTH_MAX: usize = 32;
/// From here on a double no longer tells neighbouring whole numbers apart.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;

/// What cannot be written, and where, from the root on: `.user.id`, `[3]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotJson {
    pub(super) path: String,
    pub(super) message: String,
}

pub(super) fn canonical(value: &Value) -> Result<String, NotJson> {
    let mut text = String::new();
    write(value, &mut text, DEPTH_MAX)?;
    Ok(text)
}

pub(super) fn canonical_object(object: &Struct) -> Result<String, NotJson> {
    let mut text = String::new();
    write_object(object, &mut text, DEPTH_MAX)?;
    Ok(text)
}

fn write(value: &Value, out: &mut String, depth: usize) -> Result<(), NotJson> {
    match &value.kind {
        None => return Err(refuse("has no value")),
        Some(Kind::NullValue(0)) => out.push_str("null"),
        Some(Kind::NullValue(other)) => {
            return Err(refuse(format!("{other} is not a value that this server knows")));
        }
        Some(Kind::BoolValue(value)) => out.push_str(if *value { "true" } else { "false" }),
        Some(Kind::NumberValue(number)) => write_number(*number, out)?,
        Some(Kind::StringValue(text)) => write_string(text, out),
        Some(Kind::StructValue(object)) => write_object(object, out, depth)?,
        Some(Kind::ListValue(list)) => write_list(list, out, depth)?,
    }
    Ok(())
}

fn write_object(object: &Struct, out: &mut String, depth: usize) -> Result<(), NotJson> {
    let depth = deeper(depth)?;
    out.push('{');
    // The fields come sorted.
    for (at, (key, value)) in object.fields.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_string(key, out);
        out.push(':');
        write(value, out, depth).map_err(|e| e.under(&format!(".{key}")))?;
    }
    out.push('}');
    Ok(())
}

fn write_list(list: &ListValue, out: &mut String, depth: usize) -> Result<(), NotJson> {
    let depth = deeper(depth)?;
    out.push('[');
    for (at, value) in list.values.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(value, out, depth).map_err(|e| e.under(&format!("[{at}]")))?;
    }
    out.push(']');
    Ok(())
}

fn write_number(number: f64, out: &mut String) -> Result<(), NotJson> {
    if !number.is_finite() {
        return Err(refuse(format!("{number} is not a JSON number")));
    }
    if number.abs() >= EXACT_BELOW {
        let message =
            format!("{number} is a whole number of 2^53 or more and may have been rounded");
        return Err(refuse(message));
    }
    if number.fract() == 0.0 {
        out.push_str(&(number as i64).to_string());
    } else {
        out.push_str(&serde_json::Value::from(number).to_string());
    }
    Ok(())
}

fn write_string(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
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
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(object)) => Some(struct_out(object)),
        _ => None,
    }
}

fn struct_out(object: serde_json::Map<String, serde_json::Value>) -> Struct {
    let fields = object.into_iter().map(|(key, value)| (key, value_out(value))).collect();
    Struct { fields }
}

fn value_out(value: serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(value) => Kind::BoolValue(value),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(text) => Kind::StringValue(text),
        serde_json::Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.into_iter().map(value_out).collect() })
        }
        serde_json::Value::Object(object) => Kind::StructValue(struct_out(object)),
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn number(number: f64) -> Value {
        Value { kind: Some(Kind::NumberValue(number)) }
    }

    fn refusal(value: serde_json::Value) -> String {
        let NotJson { path, message } = canonical(&value_out(value)).unwrap_err();
        format!("json{path}: {message}")
    }

    #[test]
    fn keys_are_sorted_and_nothing_is_wasted() {
        let value = json!({"b": [1, 2.5, "x\n\"é"], "a": {"z": null, "y": true}, "": false});
        let text = canonical(&value_out(value)).unwrap();
        assert_eq!(text, r#"{"":false,"a":{"y":true,"z":null},"b":[1,2.5,"x\n\"é"]}"#);
    }

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        for (given, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-17.0, "-17"),
            (9_007_199_254_740_991.0, "9007199254740991"),
            (0.1, "0.1"),
            (1e-7, "1e-7"),
            (1.5e-300, "1.5e-300"),
        ] {
            assert_eq!(canonical(&number(given)).unwrap(), text);
        }
    }

    #[test]
    fn what_a_double_cannot_say_is_refused_with_its_path() {
        for (value, start) in [
            (json!({"user": {"id": 9_007_199_254_740_992_u64}}), "json.user.id: 9007199254740992"),
            (json!({"ids": [1, -1e300]}), "json.ids[1]: -1"),
            (json!(1e16), "json: 1"),
        ] {
            let refusal = refusal(value);
            assert!(refusal.starts_with(start), "{refusal}");
        }
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(canonical(&number(bad)).is_err(), "{bad}");
        }
        assert!(canonical(&Value { kind: None }).is_err());
        assert!(canonical(&Value { kind: Some(Kind::NullValue(3)) }).is_err());
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth| (0..depth).fold(json!(1), |inner, _| json!([inner]));
        assert!(canonical(&value_out(nested(DEPTH_MAX))).is_ok());
        assert!(refusal(nested(DEPTH_MAX + 1)).contains("nested more than 32 deep"));
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let exact = -9_007_199_254_740_991_i64..=9_007_199_254_740_991;
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(|b| json!(b)),
            exact.prop_map(|n| json!(n)),
            (-1.0..1.0f64).prop_map(|n| json!(n)),
            ".{0,12}".prop_map(|s| json!(s)),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(|v| json!(v)),
                prop::collection::btree_map(".{0,6}", inner, 0..6).prop_map(|m| json!(m)),
            ]
        })
    }

    proptest! {
        #[test]
        fn other_readers_read_the_same_value(value in any_json()) {
            let wire = value_out(value);
            let text = canonical(&wire).unwrap();
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&value_out(read), &wire);
        }

        #[test]
        fn every_number_reads_back_exactly(n in any::<f64>()) {
            if let Ok(text) = canonical(&number(n)) {
                prop_assert_eq!(text.parse::<f64>().unwrap(), n);
            } else {
                prop_assert!(!n.is_finite() || n.abs() >= EXACT_BELOW);
            }
        }
    }
}
