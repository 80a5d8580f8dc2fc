//! Tests of the keeper.
