import unittest

from mail import app, send


class MailTest(unittest.TestCase):
    def test_mail_is_sent_after_its_delay(self) -> None:
        with app.testing() as queue:
            send.put(to="ann", text="hi", delay=60)
            self.assertEqual(queue.run(), 0)
            self.assertEqual(queue.advance(60), 1)
            self.assertEqual(queue.tasks("mail"), [])
