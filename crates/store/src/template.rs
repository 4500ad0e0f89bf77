//! Fills values into the SQL and Lua texts that run inside a database.

/// Replaces each placeholder `{{NAME}}` of `text` by the value of that name. Placeholders without a value stay.
pub fn substitute(text: &str, values: &[(&str, String)]) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{{{name}}}}}"), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_occurrence_of_a_name_is_replaced() {
        let values = [("A", "1".to_owned()), ("B_MAX", "20".to_owned())];
        assert_eq!(substitute("{{A}} + {{B_MAX}} - {{A}}", &values), "1 + 20 - 1");
        assert_eq!(substitute("{{C}} { A }", &values), "{{C}} { A }");
    }
}
