import taskyard

app = taskyard.App("http://127.0.0.1:7070")


@app.task("mail", retries=5)
def send(to: str, text: str) -> None:
    print(f"to {to}: {text}")


if __name__ == "__main__":
    send.put(to="ann", text="hi", delay=60, key="ann-1")
