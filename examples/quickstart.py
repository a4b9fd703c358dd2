from stepfast import Step, Stepfast

app = Stepfast("sqlite:///quickstart.db")


@app.job()
def send_invoice(step: Step, order_id: str) -> None:
    print(f"{order_id}: try {step.attempt}", flush=True)
    step.wait(5)  # the slow part: kill the worker here
    step.effect(lambda tx: tx.execute("INSERT INTO invoice VALUES (:order_id)", {"order_id": order_id}))


if __name__ == "__main__":
    with app.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS invoice (order_id TEXT)")
        job = send_invoice.enqueue(order_id="A-17", tx=tx)
    print(f"enqueued {job.id}")
