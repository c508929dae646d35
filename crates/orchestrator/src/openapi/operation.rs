//! How a route is written down: a few lines that say what cannot be derived from the
//! types and the route table.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::{
    ToSchema,
    openapi::{RefOr, Schema},
};

/// Schemas by name, as `utoipa` hands them out.
pub(super) type Collected = Vec<(String, RefOr<Schema>)>;

/// A wire type, by name, with the way to its schema and to those that it refers to.
#[derive(Clone)]
pub(super) struct Type {
    pub(super) name: String,
    pub(super) collect: fn(&mut Collected),
}

impl Type {
    pub(super) fn of<T: ToSchema>() -> Self {
        Self {
            name: T::name().into_owned(),
            collect: |out| {
                out.push((T::name().into_owned(), T::schema()));
                T::schemas(out);
            },
        }
    }

    pub(super) fn reference(&self) -> Value {
        json!({ "$ref": format!("#/components/schemas/{}", self.name) })
    }
}

/// A request's body.
#[derive(Clone)]
pub(super) struct Body {
    pub(super) schema: Type,
    pub(super) required: bool,
    pub(super) limit: usize,
    pub(super) example: Value,
}

/// What a status comes with.
#[derive(Clone)]
pub(super) enum Content {
    Nothing,
    Json(Type, Value),
    /// Media type and an example.
    Text(&'static str, &'static str),
    /// Server-sent events whose data are these records as JSON.
    Events(Type, Value),
}

/// An answer that is no error.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) description: &'static str,
    pub(super) content: Content,
    /// Headers beyond those of every answer: name and meaning.
    pub(super) headers: Vec<(&'static str, &'static str)>,
}

/// One thing that a route does: all of it, or what an `?action=` asks for.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    /// Scope with which an API key may do it, where others need the master token.
    pub(super) scope: Option<&'static str>,
    pub(super) body: Option<Body>,
    pub(super) answers: Vec<Answer>,
    /// By status: code and meaning, in the order of mention.
    pub(super) errors: BTreeMap<u16, Vec<(&'static str, &'static str)>>,
}

impl Call {
    pub(super) fn new(summary: &'static str) -> Self {
        Self {
            summary,
            description: "",
            scope: None,
            body: None,
            answers: Vec::new(),
            errors: BTreeMap::new(),
        }
    }

    pub(super) fn about(mut self, description: &'static str) -> Self {
        self.description = description;
        self
    }

    pub(super) fn scope(mut self, scope: &'static str) -> Self {
        self.scope = Some(scope);
        self
    }

    pub(super) fn body<T: ToSchema>(mut self, limit: usize, example: Value) -> Self {
        self.body = Some(Body {
            schema: Type::of::<T>(),
            required: true,
            limit,
            example,
        });
        self
    }

    pub(super) fn optional_body<T: ToSchema>(self, limit: usize, example: Value) -> Self {
        let mut call = self.body::<T>(limit, example);
        if let Some(body) = &mut call.body {
            body.required = false;
        }
        call
    }

    pub(super) fn json<T: ToSchema>(
        self,
        status: u16,
        description: &'static str,
        example: Value,
    ) -> Self {
        self.answer(status, description, Content::Json(Type::of::<T>(), example))
    }

    pub(super) fn empty(self, status: u16, description: &'static str) -> Self {
        self.answer(status, description, Content::Nothing)
    }

    pub(super) fn events<T: ToSchema>(self, description: &'static str, example: Value) -> Self {
        self.answer(200, description, Content::Events(Type::of::<T>(), example))
    }

    pub(super) fn text(
        self,
        description: &'static str,
        media: &'static str,
        example: &'static str,
    ) -> Self {
        self.answer(200, description, Content::Text(media, example))
    }

    fn answer(mut self, status: u16, description: &'static str, content: Content) -> Self {
        self.answers.push(Answer {
            status,
            description,
            content,
            headers: Vec::new(),
        });
        self
    }

    /// A header of the answer mentioned last.
    pub(super) fn header(mut self, name: &'static str, description: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push((name, description));
        }
        self
    }

    pub(super) fn error(mut self, status: u16, code: &'static str, meaning: &'static str) -> Self {
        self.errors.entry(status).or_default().push((code, meaning));
        self
    }

    /// It calls the agent of a host, which may refuse the control plane itself.
    pub(super) fn calls_an_agent(self) -> Self {
        let meaning = "the host's agent has another token than the one it was registered with";
        self.error(502, "unauthorized", meaning)
    }
}

/// A query or header parameter.
#[derive(Clone)]
pub(super) struct Parameter {
    pub(super) place: &'static str,
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// Of one that the call needs: what it may look like.
    pub(super) example: Option<&'static str>,
}

/// What a method of a path does.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    /// What the id in the path is of.
    pub(super) subject: &'static str,
    pub(super) parameters: Vec<Parameter>,
    pub(super) does: Does,
}

/// One call, or several told apart by `?action=`.
pub(super) enum Does {
    One(Box<Call>),
    Actions(Vec<(&'static str, Call)>),
}

impl Operation {
    pub(super) fn new(
        (method, path): (&'static str, &'static str),
        id: &'static str,
        (tag, subject): (&'static str, &'static str),
        call: Call,
    ) -> Self {
        Self {
            method,
            path,
            id,
            tag,
            subject,
            parameters: Vec::new(),
            does: Does::One(Box::new(call)),
        }
    }

    pub(super) fn actions(
        path: &'static str,
        id: &'static str,
        (tag, subject): (&'static str, &'static str),
        actions: Vec<(&'static str, Call)>,
    ) -> Self {
        Self {
            method: "POST",
            path,
            id,
            tag,
            subject,
            parameters: Vec::new(),
            does: Does::Actions(actions),
        }
    }

    fn parameter(
        mut self,
        place: &'static str,
        name: &'static str,
        description: &'static str,
        example: Option<&'static str>,
    ) -> Self {
        self.parameters.push(Parameter {
            place,
            name,
            description,
            example,
        });
        self
    }

    /// One without which the call is refused.
    pub(super) fn needs_query(
        self,
        name: &'static str,
        description: &'static str,
        example: &'static str,
    ) -> Self {
        self.parameter("query", name, description, Some(example))
    }

    pub(super) fn query(self, name: &'static str, description: &'static str) -> Self {
        self.parameter("query", name, description, None)
    }

    pub(super) fn header(self, name: &'static str, description: &'static str) -> Self {
        self.parameter("header", name, description, None)
    }

    /// `limit` and `cursor`.
    pub(super) fn paged(self) -> Self {
        self.query(
            "limit",
            "Entries per page: 50 when absent, not a number or below 1; 200 at most.",
        )
        .query(
            "cursor",
            "`next_cursor` of the page before. A value that is none is a 400.",
        )
    }

    /// The names in braces of the path, in order.
    pub(super) fn path_names(&self) -> impl Iterator<Item = &'static str> {
        self.path
            .split('{')
            .skip(1)
            .filter_map(|rest| rest.split('}').next())
    }

    pub(super) fn calls(&self) -> Vec<&Call> {
        match &self.does {
            Does::One(call) => vec![call],
            Does::Actions(actions) => actions.iter().map(|(_, call)| call).collect(),
        }
    }

    pub(super) fn types(&self) -> Vec<&Type> {
        let mut types = Vec::new();
        for call in self.calls() {
            types.extend(call.body.iter().map(|body| &body.schema));
            types.extend(
                call.answers
                    .iter()
                    .filter_map(|answer| match &answer.content {
                        Content::Json(schema, _) | Content::Events(schema, _) => Some(schema),
                        Content::Nothing | Content::Text(..) => None,
                    }),
            );
        }
        types
    }
}

/// An object with one key.
pub(super) fn entry(key: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(key.to_owned(), value)]))
}
