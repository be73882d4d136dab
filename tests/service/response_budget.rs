//! The memory that large replies may take.

use redrive::grpc::ResponseBudget;
use tonic::Code;

#[test]
fn replies_that_are_not_read_leave_no_budget_for_more() {
    let budget = ResponseBudget::of(1);
    let reply = || "x".repeat(700 << 10);
    let first = budget.response(reply()).unwrap();
    assert_eq!(budget.response(reply()).unwrap_err().code(), Code::ResourceExhausted);
    assert!(budget.response("small".to_owned()).is_ok());
    drop(first);
    assert!(budget.response(reply()).is_ok());
}
