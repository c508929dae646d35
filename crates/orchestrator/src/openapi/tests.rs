//! Routes and document agree, and the document is sound.

use std::collections::BTreeSet;

use super::*;

/// Method and path, or with the action.
type Set = BTreeSet<(String, String)>;

fn mounted() -> Set {
    let all = [routes::table(), routes::public(), routes::outer()];
    all.into_iter()
        .flatten()
        .map(|route| (route.method.to_string(), route.path.to_owned()))
        .collect()
}

#[test]
fn every_mounted_route_is_described_and_nothing_else() {
    let entries: Set = operations()
        .iter()
        .map(|operation| (operation.method.to_owned(), operation.path.to_owned()))
        .collect();
    assert_eq!(
        entries,
        mounted(),
        "entries of crate::openapi and routes of crate::routes"
    );
    let document = document();
    let mut described = Set::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            described.insert((method.to_uppercase(), path.clone()));
        }
    }
    assert_eq!(described, mounted());
}

#[test]
fn operation_ids_are_unique_and_tags_are_known() {
    let mut ids = BTreeSet::new();
    for operation in operations() {
        assert!(ids.insert(operation.id), "{} is there twice", operation.id);
        assert!(
            TAGS.iter().any(|(tag, _)| *tag == operation.tag),
            "{}",
            operation.tag
        );
    }
}

/// Every `$ref` of a document.
fn references(value: &Value, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(target) if key == "$ref" => {
                        out.insert(target.clone());
                    }
                    _ => references(value, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, out)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn references_lead_somewhere_and_every_schema_is_used() {
    let document = document();
    let mut targets = BTreeSet::new();
    references(&document, &mut targets);
    assert!(targets.len() > 20, "{targets:?}");
    for target in &targets {
        let pointer = target.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{target}");
    }
    for name in document["components"]["schemas"]
        .as_object()
        .unwrap()
        .keys()
    {
        let target = format!("#/components/schemas/{name}");
        assert!(targets.contains(&target), "{name}");
    }
}

#[test]
fn every_field_and_schema_is_explained() {
    let document = document();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(schema.get("description").is_some(), "{name}");
        let Some(fields) = schema["properties"].as_object() else {
            continue;
        };
        for (field, value) in fields {
            assert!(
                value.get("description").is_some(),
                "{name}.{field}: give it a doc comment"
            );
        }
    }
}

/// Every example of the document with its schema.
fn examples(value: &Value, out: &mut Vec<(Value, Value)>) {
    if let (Some(schema), Some(example)) = (value.get("schema"), value.get("example")) {
        out.push((schema.clone(), example.clone()));
    }
    match value {
        Value::Object(fields) => fields.values().for_each(|field| examples(field, out)),
        Value::Array(items) => items.iter().for_each(|item| examples(item, out)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn examples_are_of_their_schemas_and_name_no_unknown_field() {
    let document = document();
    let mut all = Vec::new();
    examples(&document["paths"], &mut all);
    assert!(all.len() > 20);
    let mut components = document["components"].clone();
    for (name, schema) in components["schemas"].as_object_mut().unwrap() {
        // Another schema adds fields to this one.
        if name != "ApiKey" && schema.get("properties").is_some() {
            schema["additionalProperties"] = Value::Bool(false);
        }
    }
    for (schema, example) in all {
        let mut whole = schema.clone();
        whole["components"] = components.clone();
        let validator = jsonschema::validator_for(&whole).unwrap();
        if let Err(e) = validator.validate(&example) {
            panic!("{schema}: {example}: {e} at {}", e.instance_path());
        }
    }
}
