//! What the schema says of the files that break one rule each: it refuses them, but for those that are marked as
//! beyond it.

use super::schema;
use crate::yaml::to_json;

const CATALOGUE: &str = include_str!("../../tests/it/rules/catalogue.txt");
/// Behind the title of a file that the schema lets pass.
const BEYOND: &str = " ~";

#[test]
fn the_catalogue_is_refused_as_far_as_it_can_be() {
    let validator = jsonschema::draft202012::new(&schema()).unwrap();
    let mut wrong = Vec::new();
    for case in CATALOGUE.split("\n== ").skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let (source, _) = rest.split_once("\n--").unwrap();
        let document = to_json(source).unwrap();
        if validator.is_valid(&document) != title.ends_with(BEYOND) {
            wrong.push(title);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
