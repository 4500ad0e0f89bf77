-- How many done tasks a tube keeps, for those who ask for the tube.
ALTER TYPE taskyard.tube_info ADD ATTRIBUTE kept bigint;
