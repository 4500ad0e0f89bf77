//! Names and schemas of JSON types, for the OpenAPI document.
//!
//! A test writes the document and the server embeds it, so only tests compile schemas: in the product every type counts as
//! described and a [`Described`] is empty.

pub(crate) use schemas::{Described, ToSchema};

#[cfg(not(test))]
mod schemas {
    /// Types that the document can describe: all.
    pub(crate) trait ToSchema {}

    impl<T> ToSchema for T {}

    /// A type that the document describes.
    pub(crate) struct Described;

    impl Described {
        /// The description of this type.
        pub fn of<T: ToSchema>() -> Self {
            Described
        }
    }
}

#[cfg(test)]
mod schemas {
    use utoipa::PartialSchema;
    pub(crate) use utoipa::ToSchema;
    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::Schema;

    /// A type that the document describes, with all the types it is made of.
    pub(crate) struct Described {
        pub name: String,
        pub parts: Vec<(String, RefOr<Schema>)>,
    }

    impl Described {
        /// The description of this type.
        pub fn of<T: ToSchema>() -> Self {
            let name = T::name().into_owned();
            let mut parts = vec![(name.clone(), <T as PartialSchema>::schema())];
            T::schemas(&mut parts);
            Described { name, parts }
        }
    }
}
