//! What would otherwise be written in two or three places.

/// An enum whose values have names.
macro_rules! named {
    ($(#[$meta:meta])* $enum:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $enum {
            $($(#[$doc])* $value,)*
        }

        impl $enum {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.as_str() == name)
            }
        }
    };
}

/// A struct whose fields have default values.
macro_rules! with_defaults {
    ($(#[$meta:meta])* $struct:ident { $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$meta])*
        pub struct $struct {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for $struct {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

pub(super) use named;
pub(crate) use with_defaults;
