//! Rules against a model that asks them one by one, and the hook between the links of a router.

mod hook;
mod model;
mod parts;
mod track;
