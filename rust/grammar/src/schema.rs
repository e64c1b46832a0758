//! Which part of a schema is at fault.
//!
//! In: a schema, and a way to compile schemas. Out: the place and what is wrong there, in the caller's words.
//!
//! L1  What is checked here is what the grammar engine would pass over in silence or spend unbounded time on: values of the wrong type, alternatives that
//!     multiply, values that never end.
//! L2  The grammar engine says what it refuses, not where. The place is the smallest part of the schema that is refused in the same words when it stands alone,
//!     beside the definitions of the whole. A reference leads to what it names.
//!
//! Cost: nothing for a schema that compiles but one walk; else one compilation for each part beside the way to the fault, at most [`MAX_ATTEMPTS`].

use serde_json::{Map, Value};

use crate::compile::GrammarError;

/// Compilations that the search for a place may take.
const MAX_ATTEMPTS: usize = 200;
/// Combinations of alternatives that `allOf` may ask for.
const MAX_COMBINATIONS: usize = 4096;
/// Schemas that are looked at to find out whether a value can be finite.
const MAX_WALKED: usize = 10_000;
/// Depth to which references are followed when combinations are counted.
const MAX_FOLLOWED: usize = 64;

const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "integer", "string"];
/// Keywords that hold a schema, or a list of them.
const SCHEMAS: [&str; 15] = [
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "anyOf",
    "oneOf",
    "allOf",
];
/// Keywords that hold schemas by name.
const NAMED: [&str; 5] = ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];

/// What is wrong, where.
#[derive(Debug)]
pub(crate) struct Fault {
    place: String,
    message: String,
}

impl Fault {
    pub(crate) fn of(self, kind: &'static str) -> GrammarError {
        GrammarError { kind, place: Some(self.place), message: self.message }
    }
}

/// A schema within a schema.
struct Part<'s> {
    place: String,
    schema: &'s Value,
}

/// The schemas directly within one.
fn parts<'s>(place: &str, schema: &'s Value) -> Vec<Part<'s>> {
    let mut all = Vec::new();
    let Value::Object(keywords) = schema else { return all };
    for (keyword, value) in keywords {
        let place = format!("{place}/{}", escaped(keyword));
        match value {
            Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                all.extend(
                    named.iter().map(|(name, schema)| Part { place: format!("{place}/{}", escaped(name)), schema }),
                );
            }
            Value::Array(list) if SCHEMAS.contains(&keyword.as_str()) => {
                all.extend(list.iter().enumerate().map(|(i, schema)| Part { place: format!("{place}/{i}"), schema }));
            }
            _ if SCHEMAS.contains(&keyword.as_str()) => all.push(Part { place, schema: value }),
            _ => {}
        }
    }
    all
}

/// A name as JSON pointers spell it.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// What a reference within the document names.
fn named<'s>(root: &'s Value, schema: &Value) -> Option<Part<'s>> {
    let place = schema.get("$ref")?.as_str()?;
    let schema = root.pointer(place.strip_prefix('#')?)?;
    Some(Part { place: place.to_owned(), schema })
}

/// Checks all parts (L1).
///
/// # Errors
/// The first fault, outer parts first.
pub(crate) fn check(root: &Value) -> Result<(), Fault> {
    let mut waiting = vec![Part { place: "#".to_owned(), schema: root }];
    while let Some(Part { place, schema }) = waiting.pop() {
        match schema {
            Value::Object(keywords) => check_keywords(root, &place, keywords)?,
            Value::Bool(_) => {}
            other => {
                let message = format!("expected a schema, an object or a boolean, found {}", kind(other));
                return Err(Fault { place, message });
            }
        }
        waiting.extend(parts(&place, schema).into_iter().rev());
    }
    if is_finite(root, root, &mut vec!["#"], &mut MAX_WALKED.clone()) {
        return Ok(());
    }
    Err(Fault { place: "#".to_owned(), message: "no answer of finite length can meet it".into() })
}

/// Whether a schema has values of finite depth; true where that takes too long to find out. `within`: the references that lead here.
fn is_finite<'s>(root: &'s Value, schema: &'s Value, within: &mut Vec<&'s str>, left: &mut usize) -> bool {
    let Value::Object(keywords) = schema else { return true };
    if *left == 0 || keywords.contains_key("const") || keywords.contains_key("enum") {
        return true;
    }
    *left -= 1;
    if let (Some(Value::String(place)), Some(part)) = (keywords.get("$ref"), named(root, schema)) {
        if within.contains(&place.as_str()) {
            return false;
        }
        within.push(place);
        let finite = is_finite(root, part.schema, within, left);
        within.pop();
        if !finite {
            return false;
        }
    }
    let list = |keyword: &str| keywords.get(keyword).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !list("allOf").iter().all(|schema| is_finite(root, schema, within, left)) {
        return false;
    }
    for keyword in ["anyOf", "oneOf"] {
        let schemas = list(keyword);
        if !schemas.is_empty() && !schemas.iter().any(|schema| is_finite(root, schema, within, left)) {
            return false;
        }
    }
    match keywords.get("type").and_then(Value::as_str) {
        Some("object") => list("required").iter().filter_map(Value::as_str).all(|name| {
            let property = keywords.get("properties").and_then(|named| named.get(name));
            property.is_none_or(|schema| is_finite(root, schema, within, left))
        }),
        Some("array") if keywords.get("minItems").and_then(Value::as_u64).unwrap_or(0) > 0 => {
            let first = list("prefixItems").first().or_else(|| keywords.get("items"));
            first.is_none_or(|schema| is_finite(root, schema, within, left))
        }
        _ => true,
    }
}

fn check_keywords(root: &Value, place: &str, keywords: &Map<String, Value>) -> Result<(), Fault> {
    let at = |keyword: &str, message: String| Fault { place: format!("{place}/{}", escaped(keyword)), message };
    let types: Vec<&Value> = match keywords.get("type") {
        Some(Value::Array(types)) => types.iter().collect(),
        Some(one) => vec![one],
        None => Vec::new(),
    };
    for found in types {
        if !found.as_str().is_some_and(|name| TYPES.contains(&name)) {
            return Err(at("type", format!("expected one of {}, found {found}", TYPES.join(", "))));
        }
    }
    for (keyword, value) in keywords {
        let expected = match keyword.as_str() {
            _ if NAMED.contains(&keyword.as_str()) => (!value.is_object()).then_some("an object of schemas"),
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => (!value.is_array()).then_some("a list of schemas"),
            "required" => {
                (!value.as_array().is_some_and(|names| names.iter().all(Value::is_string))).then_some("a list of names")
            }
            "enum" => (!value.is_array()).then_some("a list of values"),
            "pattern" | "format" | "$ref" => (!value.is_string()).then_some("text"),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                (!value.is_u64()).then_some("a whole number of 0 or more")
            }
            "minimum" | "maximum" | "multipleOf" => (!value.is_number()).then_some("a number"),
            _ => None,
        };
        if let Some(expected) = expected {
            return Err(at(keyword, format!("expected {expected}, found {}", kind(value))));
        }
    }
    let found = combinations(root, keywords, 0);
    if found > MAX_COMBINATIONS {
        let message = format!("expected at most {MAX_COMBINATIONS} combinations of alternatives, found {found}");
        return Err(Fault { place: place.to_owned(), message });
    }
    Ok(())
}

/// How many alternatives a schema has once what it intersects is multiplied out.
fn combinations(root: &Value, keywords: &Map<String, Value>, depth: usize) -> usize {
    let of = |schema: &Value| match schema {
        Value::Object(keywords) if depth < MAX_FOLLOWED => combinations(root, keywords, depth + 1),
        _ => 1,
    };
    let list = |keyword: &str| keywords.get(keyword).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    // Once there are too many it does not matter how many.
    let enough = |n: usize| n.min(MAX_COMBINATIONS * 16);
    let mut product = 1usize;
    for keyword in ["anyOf", "oneOf"] {
        let mut sum = 0usize;
        for schema in list(keyword) {
            sum = enough(sum + of(schema));
        }
        product = enough(product * sum.max(1));
    }
    for schema in list("allOf") {
        product = enough(product * of(schema));
        if product > MAX_COMBINATIONS {
            return product;
        }
    }
    let whole = Value::Object(Map::from_iter(keywords.get("$ref").map(|name| ("$ref".to_owned(), name.clone()))));
    match named(root, &whole) {
        Some(part) => enough(product * of(part.schema)),
        None => product,
    }
}

/// The place of a fault that `attempt` finds in the whole (L2), and its words there.
pub(crate) fn locate(root: &Value, message: String, attempt: &impl Fn(&Value) -> Result<(), String>) -> Fault {
    // An outer part that cannot be met says why after saying so.
    let core = |message: &str| {
        let first = message.split("; ").next().unwrap_or_default();
        first.rsplit("no answer can meet it: ").next().unwrap_or_default().to_owned()
    };
    let words = core(&message);
    let mut left = MAX_ATTEMPTS;
    let mut fault = Fault { place: "#".to_owned(), message };
    let mut at = root;
    let mut seen = vec!["#".to_owned()];
    loop {
        let mut inner = parts(&fault.place, at);
        // Definitions are found by the references to them.
        inner.retain(|part| {
            !["$defs", "definitions"].iter().any(|name| part.place == format!("{}/{name}", fault.place))
        });
        inner.extend(named(root, at));
        let faulty = inner.into_iter().find_map(|part| {
            if left == 0 || seen.contains(&part.place) {
                return None;
            }
            left -= 1;
            let message = attempt(&alone(root, part.schema)).err()?;
            (core(&message) == words).then_some((part, message))
        });
        match faulty {
            Some((part, message)) => {
                seen.push(part.place.clone());
                at = part.schema;
                fault = Fault { place: part.place, message };
            }
            None => return fault,
        }
    }
}

/// A part with the definitions of the whole.
fn alone(root: &Value, part: &Value) -> Value {
    let mut schema = part.clone();
    if let (Value::Object(schema), Value::Object(root)) = (&mut schema, root) {
        for keyword in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(keyword) {
                schema.entry(keyword).or_insert_with(|| definitions.clone());
            }
        }
    }
    schema
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
